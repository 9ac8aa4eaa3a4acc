#include "state/entries.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include "rendezvous/agree.h"
#include "step/step.h"
#include "storage/own_work.h"

namespace sherd::detail {

int64_t StateEntry::numel() const {
  return c10::multiply_integers(shape);
}

std::vector<std::string> StateEntry::names() const {
  std::vector<std::string> names = {name};
  names.insert(names.end(), aliases.begin(), aliases.end());
  return names;
}

std::string StateEntry::described() const {
  return (is_buffer() ? "buffer '" : "parameter '") + name + "'";
}

std::string StateEntry::shape_fault(at::IntArrayRef given) const {
  const at::IntArrayRef own(shape);
  return own == given ? ""
                      : "has shape " + c10::str(own) + " in the model, and " + c10::str(given) +
                            " was given";
}

std::string StateEntry::dtype_fault(c10::ScalarType given) const {
  return c10::isFloatingType(given) == mine.is_floating_point()
             ? ""
             : std::string("is ") + c10::toString(original_dtype) + " in the model, and " +
                   c10::toString(given) + " was given";
}

std::string StateEntry::mismatch(const at::Tensor& tensor) const {
  std::string fault = tensor.defined() ? shape_fault(tensor.sizes()) : "is missing";
  if (fault.empty()) {
    fault = tensor.is_meta() ? "was given on the meta device, without values"
                             : dtype_fault(tensor.scalar_type());
  }
  return fault.empty() ? "" : described() + " " + fault;
}

void StateEntry::write(int64_t first, const at::Tensor& values) {
  const int64_t from = std::max(first, begin);
  const int64_t to = std::min(first + values.numel(), begin + mine.numel());
  if (from < to) {
    mine.narrow(from - begin, to - from).write(values.narrow(0, from - first, to - from));
  }
}

void StateEntry::begin_writing() {
  if (!is_buffer()) {
    *has_values = false;
  }
}

void StateEntry::finish_writing() {
  if (is_buffer() && !mine.in_place().is_alias_of(buffer)) {  // `mine` is a contiguous copy
    const at::NoGradGuard no_grad;
    buffer.copy_(mine.in_place().view(shape));
  }
  *has_values = true;
}

std::vector<StateEntry> state_entries(ShardedModule& model) {
  Model& data = engine_of(model).model;
  require_all_sharded(data);
  const int shard_size = data.mesh.shard_size();
  std::vector<StateEntry> entries;
  for_each_held_part(data, [&](const UnitState&, UnitParameter& parameter, const HeldPart& held) {
    const SegmentLayout& layout = held.segment.layout();
    StateEntry& entry = entries.emplace_back();
    entry = {.name = parameter.name,
             .aliases = parameter.aliases,
             .shape = parameter.tensor.sizes().vec(),
             .original_dtype = parameter.original_dtype,
             .begin = held.range.begin,
             .mine = held.values(),
             .trainable = parameter.trainable,
             .is_written = parameter.has_values,
             .has_values = &parameter.has_values};
    for (int rank = 0; rank < shard_size; ++rank) {
      entry.pieces.push_back(layout.held_by(layout.places[held.place], rank));
    }
  });
  for (ModelBuffer& buffer : data.buffers) {
    entries.push_back({.name = buffer.name,
                       .aliases = buffer.aliases,
                       .shape = buffer.tensor.sizes().vec(),
                       .original_dtype = buffer.tensor.scalar_type(),
                       .pieces = std::vector<Range>(static_cast<size_t>(shard_size)),
                       .mine = own_work([&] { return buffer.tensor.detach().reshape({-1}); }),
                       .buffer = buffer.tensor,
                       .is_written = buffer.is_written(),
                       .has_values = &buffer.has_values});
    entries.back().pieces.front().end = buffer.tensor.numel();
  }
  return entries;
}

void check_no_faults(const std::string& what, const std::string& faults) {
  if (!faults.empty()) {
    throw Error(ExitCode::BadData, what + faults);
  }
}

std::vector<HeldTensor> held_tensors(const std::vector<StateEntry>& entries,
                                     const std::vector<OptimizerShard>& shards) {
  std::map<std::string, const OptimizerShard*> by_name;
  for (const OptimizerShard& shard : shards) {
    by_name[shard.parameter] = &shard;
  }
  std::vector<HeldTensor> held;
  for (const StateEntry& entry : entries) {
    if (entry.mine.numel() == 0) {
      continue;
    }
    if (const auto shard = by_name.find(entry.name); shard != by_name.end()) {
      for (const auto& [kind, tensor] : shard->second->tensors) {
        held.push_back(
            {kind, entry.name, entry.begin, ShardValues(tensor).resting(shard->second->use)});
      }
    }
    held.push_back({"value", entry.name, entry.begin, entry.mine});
  }
  return held;
}

std::vector<int> senders(ShardedModule& model) {
  const Mesh& mesh = engine_of(model).model.mesh;
  const std::vector<std::string> places = model.world().all_gather(
      mesh.replicate_rank() == 0 ? std::to_string(mesh.shard_rank()) : "none");
  std::vector<int> ranks(static_cast<size_t>(mesh.shard_size()), 0);
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank] != "none") {
      ranks.at(std::stoul(places[rank])) = static_cast<int>(rank);
    }
  }
  return ranks;
}

void broadcast_elements(World& world, int root, const at::Tensor& source, int64_t numel,
                        c10::ScalarType dtype,
                        const std::function<void(int64_t first, const at::Tensor& values)>& take) {
  constexpr int64_t kChunkBytes = int64_t{1} << 20;
  const at::NoGradGuard no_grad;
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t chunk = std::min(numel, kChunkBytes / element);
  const bool sends = world.rank() == root;
  const bool in_place =
      sends && source.scalar_type() == dtype && source.is_contiguous() && source.is_cpu();
  const at::Tensor staging =
      own_work([&] { return in_place ? source : at::empty({chunk}, dtype); });
  for (int64_t first = 0; first < numel; first += chunk) {
    const int64_t count = std::min(chunk, numel - first);
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
  std::vector<const HostWork*> elsewhere;
  for (const HostWork& one : all) {
    (lies_on_host(one.values) ? in_place : elsewhere).push_back(&one);
  }
  in_parallel(in_place.size(),
              [&](size_t i) { in_place[i]->work(0, in_place[i]->values.in_place()); });
  std::vector<const HostWork*> batch;
  int64_t bytes = 0;
  for (const HostWork* one : elsewhere) {
    if (one->values.rests()) {
      on_offloaded(*one, use);
      continue;
    }
    const int64_t more =
        one->values.numel() * static_cast<int64_t>(c10::elementSize(one->values.dtype()));
    if (bytes + more > kCopiedBytes) {
      on_copies(std::exchange(batch, {}), use);
      bytes = 0;
    }
    batch.push_back(one);
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
