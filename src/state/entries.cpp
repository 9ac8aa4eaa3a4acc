#include "state/entries.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "step/step.h"
#include "storage/own_work.h"

namespace sherd::detail {

int64_t StateEntry::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string StateEntry::described() const {
  return (is_buffer() ? "buffer '" : "parameter '") + name + "'";
}

std::string StateEntry::mismatch(const at::Tensor& tensor) const {
  if (!tensor.defined()) {
    return described() + " is missing";
  }
  if (tensor.sizes() != at::IntArrayRef(shape)) {
    return described() + " has shape " + c10::str(at::IntArrayRef(shape)) + " in the model, and " +
           c10::str(tensor.sizes()) + " was given";
  }
  if (tensor.is_meta()) {
    return described() + " was given on the meta device, without values";
  }
  if (tensor.is_floating_point() != mine.is_floating_point()) {
    return described() + " is " + c10::toString(original_dtype) + " in the model, and " +
           c10::toString(tensor.scalar_type()) + " was given";
  }
  return "";
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

namespace {

StateEntry entry_of(UnitParameter& parameter, const HeldPart& held, int shard_size) {
  const SegmentLayout& layout = held.segment.layout();
  StateEntry entry;
  entry.name = parameter.name;
  entry.aliases = parameter.aliases;
  entry.shape = parameter.tensor.sizes().vec();
  entry.original_dtype = parameter.original_dtype;
  entry.begin = held.range.begin;
  entry.mine = held.values();
  entry.trainable = parameter.trainable;
  entry.is_written = parameter.has_values;
  entry.has_values = &parameter.has_values;
  for (int rank = 0; rank < shard_size; ++rank) {
    entry.pieces.push_back(layout.held_by(layout.places[held.place], rank));
  }
  return entry;
}

StateEntry entry_of(ModelBuffer& buffer, int shard_size) {
  StateEntry entry;
  entry.name = buffer.name;
  entry.aliases = buffer.aliases;
  entry.shape = buffer.tensor.sizes().vec();
  entry.original_dtype = buffer.tensor.scalar_type();
  entry.mine = own_work([&] { return buffer.tensor.detach().reshape({-1}); });
  entry.buffer = buffer.tensor;
  entry.is_written = buffer.is_written();
  entry.has_values = &buffer.has_values;
  entry.pieces.assign(static_cast<size_t>(shard_size), {});
  entry.pieces.front().end = buffer.tensor.numel();
  return entry;
}

}  // namespace

std::vector<StateEntry> state_entries(ShardedModule& model) {
  Engine& engine = detail::engine_of(model);
  const int shard_size = engine.model.mesh.shard_size();
  std::vector<StateEntry> entries;
  for_each_held_part(engine.model,
                     [&](const UnitState&, UnitParameter& parameter, const HeldPart& held) {
                       entries.push_back(entry_of(parameter, held, shard_size));
                     });
  for (ModelBuffer& buffer : engine.model.buffers) {
    entries.push_back(entry_of(buffer, shard_size));
  }
  return entries;
}

std::vector<int> senders(ShardedModule& model) {
  const Mesh& mesh = detail::engine_of(model).model.mesh;
  const std::vector<std::string> places = model.world().all_gather(
      std::to_string(mesh.replicate_rank()) + " " + std::to_string(mesh.shard_rank()));
  std::vector<int> ranks(static_cast<size_t>(mesh.shard_size()), 0);
  for (size_t rank = 0; rank < places.size(); ++rank) {
    std::istringstream place(places[rank]);
    int replica = 0;
    size_t shard_rank = 0;
    place >> replica >> shard_rank;
    if (replica == 0) {
      ranks.at(shard_rank) = static_cast<int>(rank);
    }
  }
  return ranks;
}

}  // namespace sherd::detail
