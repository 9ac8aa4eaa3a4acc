#include "state/host_work.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

namespace sherd::detail {

namespace {

bool lies_on_host(const ShardValues& values) {
  const at::Tensor place = values.in_place();
  return place.defined() && place.is_cpu();
}

void on_copies(const std::vector<const HostWork*>& batch, HostUse use) {
  std::vector<at::Tensor> copies;
  for (const HostWork* one : batch) {
    copies.push_back(use == HostUse::Reads ? one->values.read().cpu()
                                           : at::empty({one->values.numel()}, one->values.dtype()));
  }
  in_parallel(batch.size(), [&](size_t i) { batch[i]->work(0, copies[i]); });
  for (size_t i = 0; use == HostUse::Fills && i < batch.size(); ++i) {
    batch[i]->values.write(copies[i]);
  }
}

// Values are offloaded for want of memory, so at most one HostWork is in memory at a time.
void on_offloaded(const HostWork& one, HostUse use) {
  if (use == HostUse::Fills) {
    on_copies({&one}, use);
    return;
  }
  one.values.for_each_stretch(/*writes=*/false, [&](int64_t first, const ShardValues& part) {
    one.work(first, part.read().cpu());
  });
}

}  // namespace

void in_parallel(size_t count, const std::function<void(size_t)>& fn) {
  std::atomic<size_t> next{0};
  const auto take_all = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        fn(i);
      } catch (...) {
        next = count;
        throw;
      }
    }
  };
  const auto threads = std::min(static_cast<int64_t>(count), int64_t{at::get_num_threads()});
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) { take_all(); });
}

void on_host_in_parallel(const std::vector<HostWork>& all, HostUse use) {
  constexpr int64_t kCopiedBytes = int64_t{128} << 20;
  std::vector<const HostWork*> in_place;
  for (const HostWork& one : all) {
    if (lies_on_host(one.values)) {
      in_place.push_back(&one);
    }
  }
  in_parallel(in_place.size(),
              [&](size_t i) { in_place[i]->work(0, in_place[i]->values.in_place()); });
  std::vector<const HostWork*> batch;
  int64_t bytes = 0;
  for (const HostWork& one : all) {
    if (lies_on_host(one.values)) {
      continue;
    }
    if (one.values.rests()) {
      on_offloaded(one, use);
      continue;
    }
    const int64_t more =
        one.values.numel() * static_cast<int64_t>(c10::elementSize(one.values.dtype()));
    if (bytes + more > kCopiedBytes) {
      on_copies(std::exchange(batch, {}), use);
      bytes = 0;
    }
    batch.push_back(&one);
    bytes += more;
  }
  on_copies(batch, use);
}

bool can_be_read_as(c10::ScalarType stored, const ShardValues& values) {
  return stored == values.dtype() || (c10::isFloatingType(stored) && values.is_floating_point());
}

void fill_entries(World& world, std::vector<StateEntry>& entries,
                  const std::vector<HostWork>& reads, const std::string& source,
                  const std::string& folder) {
  constexpr std::chrono::minutes kLongestRead{30};  // other ranks wait as long
  for (StateEntry& entry : entries) {
    entry.begin_writing();
  }
  on_all_ranks(world, source + " could not be read", [&] {
    const WorkPhase reading(world, "reading " + source + " in " + folder, kLongestRead);
    on_host_in_parallel(reads, HostUse::Fills);
  });
  for (StateEntry& entry : entries) {
    entry.finish_writing();
  }
}

}  // namespace sherd::detail
