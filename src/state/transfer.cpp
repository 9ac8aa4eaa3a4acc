#include "state/transfer.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "rendezvous/agree.h"
#include "storage/own_work.h"

namespace sherd::detail {

void broadcast_elements(World& world, int root, const at::Tensor& source, int64_t numel,
                        c10::ScalarType dtype,
                        const std::function<void(int64_t first, const at::Tensor& values)>& take) {
  const at::NoGradGuard no_grad;
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t stretch = std::min(numel, kStagingBytes / element);
  const bool sends = world.rank() == root;
  const bool in_place =
      sends && source.scalar_type() == dtype && source.is_contiguous() && source.is_cpu();
  const at::Tensor staging =
      own_work([&] { return in_place ? source : at::empty({stretch}, dtype); });
  for (int64_t first = 0; first < numel; first += stretch) {
    const int64_t count = std::min(stretch, numel - first);
    const at::Tensor values = staging.narrow(0, in_place ? first : 0, count);
    if (sends && !in_place) {
      values.copy_(source.narrow(0, first, count));
    }
    // On the root the bytes are only read.
    world.broadcast(const_cast<void*>(values.const_data_ptr()), count * element, root);
    take(first, values);
  }
}

namespace {

// Copies a range of the entry's elements from the rank that holds them to rank 0's `whole` [numel].
void send_to_rank0(World& world, int from, const StateEntry& entry, const Range& range,
                   c10::ScalarType dtype, const at::Tensor& whole) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t first = range.begin; first < range.end; first += kSentBytes / element) {
    const int64_t count = std::min(kSentBytes / element, range.end - first);
    at::Tensor values = whole.defined() ? whole.narrow(0, first, count) : at::Tensor();
    if (world.rank() == from) {
      const at::Tensor held = own_work(
          [&] { return entry.mine.narrow(first - entry.begin, count).read().to(at::kCPU, dtype); });
      values = values.defined() ? values.copy_(held) : held.contiguous();
    }
    // The sender's bytes are only read.
    void* data = values.defined() ? const_cast<void*>(values.const_data_ptr()) : nullptr;
    world.send(data, count * element, from, 0);
  }
}

void send_to_all(World& world, int from, const StateEntry& entry, const Range& range,
                 c10::ScalarType dtype, const at::Tensor& whole) {
  const at::Tensor source = world.rank() == from && range.size() > 0
                                ? entry.mine.narrow(range.begin - entry.begin, range.size()).read()
                                : at::Tensor();
  broadcast_elements(world, from, source, range.size(), dtype,
                     [&](int64_t first, const at::Tensor& values) {
                       whole.narrow(0, range.begin + first, values.numel()).copy_(values);
                     });
}

}  // namespace

at::Tensor collect(World& world, const std::vector<int>& senders, const StateEntry& entry,
                   c10::ScalarType dtype, bool rank0_only) {
  const at::NoGradGuard no_grad;
  const bool wanted = !rank0_only || world.rank() == 0;
  const at::Tensor whole =
      own_work([&] { return wanted ? at::empty(entry.shape, dtype) : at::Tensor(); });
  const at::Tensor flat = wanted ? whole.view({-1}) : whole;
  for (size_t shard_rank = 0; shard_rank < entry.pieces.size(); ++shard_rank) {
    (rank0_only ? send_to_rank0 : send_to_all)(world, senders[shard_rank], entry,
                                               entry.pieces[shard_rank], dtype, flat);
  }
  return whole;
}

void Visits::add(int64_t bytes, const std::function<void()>& visit) {
  constexpr int64_t kAgreedBytes = int64_t{256} << 20;
  try {
    if (!thrown_) {
      visit();
    }
  } catch (...) {
    thrown_ = std::current_exception();
  }
  unagreed_bytes_ += bytes;
  if (unagreed_bytes_ >= kAgreedBytes) {
    finish();
  }
}

void Visits::finish() {
  unagreed_bytes_ = 0;
  static_cast<void>(agree(world_, failure_, [&]() -> std::string {
    if (thrown_) {
      std::rethrow_exception(thrown_);
    }
    return "";
  }));
}

}  // namespace sherd::detail
