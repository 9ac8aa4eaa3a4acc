#include "optim/adamw_state.h"

#include <algorithm>
#include <utility>

#include "storage/movable_storage.h"

namespace sherd::detail {

namespace {

// Offsets of each updated parameter's moments, by place, and their total number: laid out as the
// piece is, or packed where the optimizer leaves some parameters alone.
std::pair<std::map<size_t, int64_t>, int64_t> lay_out_moments(const SegmentMoments& state) {
  const SegmentLayout& layout = state.of.segment->layout();
  const bool whole = state.updated.size() == layout.places.size();
  const auto alignment = kAlignmentBytes / static_cast<int64_t>(c10::elementSize(layout.dtype));
  std::map<size_t, int64_t> offsets;
  int64_t end = 0;
  for (const auto& [index, updated] : state.updated) {
    const HeldPart held = state.of.unit->held_part(*updated.parameter);
    offsets[index] = whole ? held.start : end;
    end += (held.range.size() + alignment - 1) / alignment * alignment;
  }
  return {std::move(offsets), whole ? layout.shard_numel : end};
}

// exp_avg and exp_avg_sq of a segment, [numel] each.
std::pair<at::Tensor, at::Tensor> allocate_moments(SegmentMoments& state, int64_t numel,
                                                   c10::ScalarType dtype, const Model& model) {
  const c10::Device device = state.of.segment->layout().device;
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  if (model.offload.optimizer_on_host) {
    state.on_host = std::make_unique<HostHome>(model.offload.on_host, 2 * bytes,
                                               MemoryKind::OptimizerState, model.offload.optimizer);
    return {state.on_host->view(0, numel, dtype), state.on_host->view(bytes, numel, dtype)};
  }
  if (model.offload.optimizer != nullptr) {
    state.home = std::make_unique<SegmentHome>(model.offload.optimizer, 2 * bytes);
    return {state.home->view(0, numel, dtype), state.home->view(bytes, numel, dtype)};
  }
  state.exp_avg_buffer = Buffer(bytes, MemoryKind::OptimizerState, model.ledger, device);
  state.exp_avg_sq_buffer = Buffer(bytes, MemoryKind::OptimizerState, model.ledger, device);
  return {flat_tensor(state.exp_avg_buffer.data(), numel, dtype, device),
          flat_tensor(state.exp_avg_sq_buffer.data(), numel, dtype, device)};
}

constexpr int64_t kStretch = int64_t{1} << 20;

bool rests(const SegmentMoments& state) {
  const FlatSegment& segment = *state.of.segment;
  return state.home != nullptr || state.on_host != nullptr || segment.master_on_host() != nullptr ||
         segment.parameters_on_host() != nullptr || segment.parameter_home() != nullptr ||
         segment.gradients()->rests();
}

// Calls fn(home, view, writes) for what of a stretch a CPU has on a disk.
template <class Fn>
void for_each_home(const Stretch& stretch, const Fn& fn) {
  const shard_math::AdamWTensors& tensors = stretch.run->tensors;
  const FlatSegment& segment = *stretch.state->of.segment;
  if (SegmentHome* const home = segment.master_home()) {
    fn(*home, stretch.of(tensors.low.defined() ? tensors.low : tensors.master), true);
  }
  if (SegmentHome* const home = segment.parameter_home()) {
    fn(*home, stretch.of(tensors.travelling.defined() ? tensors.travelling : tensors.master), true);
  }
  if (SegmentHome* const home = segment.gradients()->home()) {
    fn(*home, stretch.gradient(), false);
  }
  if (stretch.state->home != nullptr) {
    fn(*stretch.state->home, stretch.of(tensors.exp_avg), true);
    fn(*stretch.state->home, stretch.of(tensors.exp_avg_sq), true);
  }
}

// Of a segment's tensors, those that rest on the host, and where.
std::vector<std::pair<at::Tensor shard_math::AdamWTensors::*, HostHome*>> on_host(
    const SegmentMoments& state) {
  using Tensors = shard_math::AdamWTensors;
  std::vector<std::pair<at::Tensor Tensors::*, HostHome*>> found;
  const FlatSegment& segment = *state.of.segment;
  if (HostHome* const home = segment.master_on_host()) {
    found.emplace_back(segment.has_split_master() ? &Tensors::low : &Tensors::master, home);
  }
  if (HostHome* const home = segment.parameters_on_host()) {
    const bool is_master = segment.master().is_same(segment.travelling());
    found.emplace_back(is_master ? &Tensors::master : &Tensors::travelling, home);
  }
  if (HostHome* const home = state.on_host.get()) {
    found.emplace_back(&Tensors::exp_avg, home);
    found.emplace_back(&Tensors::exp_avg_sq, home);
  }
  if (HostHome* const home = segment.gradients()->on_host()) {
    found.emplace_back(&Tensors::gradient, home);  // the last, and the only one not written
  }
  return found;
}

std::vector<OnHost> tensors_on_host(const Stretch& stretch) {
  using Tensors = shard_math::AdamWTensors;
  std::vector<OnHost> tensors;
  for (const auto& [tensor, home] : on_host(*stretch.state)) {
    tensors.push_back({home, tensor == &Tensors::gradient
                                 ? stretch.gradient()
                                 : stretch.of(stretch.run->tensors.*tensor)});
  }
  return tensors;
}

// One stretch that is updated, one that is read, and two that are written; of a device one more,
// whose pages are copied.
void raise_limits(const std::vector<SegmentMoments>& segments) {
  for (const SegmentMoments& state : segments) {
    for (const Run& run : state.runs) {
      const Stretch largest{&state, &run, 0, std::min(kStretch, run.numel)};
      std::map<OffloadStore*, int64_t> bytes;
      const auto add = [&](OffloadStore* store, const at::Tensor& view) {
        bytes[store] += static_cast<int64_t>(view.nbytes()) + HomeChunk::kBytes;
      };
      for_each_home(largest, [&](const SegmentHome& home, const at::Tensor& view, bool /*writes*/) {
        add(&home.store(), view);
      });
      for (const OnHost& tensor : tensors_on_host(largest)) {
        if (OffloadStore* const disk = tensor.home->disk()) {
          add(disk, tensor.view);
        }
      }
      for (const auto& [store, of_a_stretch] : bytes) {
        const int64_t in_flight = store->is_behind_host() ? 5 : 4;
        store->raise_limit(in_flight * of_a_stretch);
      }
    }
  }
}

}  // namespace

void add_moments(SegmentMoments& state, c10::ScalarType dtype, const Model& model) {
  const FlatSegment& segment = *state.of.segment;
  const auto [offsets, numel] = lay_out_moments(state);
  const auto [exp_avg, exp_avg_sq] = allocate_moments(state, numel, dtype, model);
  for (const auto& [place, offset] : offsets) {
    const HeldPart held = state.of.unit->held_part(*state.updated.at(place).parameter);
    const auto moment = [&, from = offset](const at::Tensor& all) {
      return all.narrow(0, from, held.range.size());
    };
    const auto part = [&held](const at::Tensor& piece) {
      return piece.defined() ? held.of(piece) : at::Tensor();
    };
    const bool is_whole = segment.master().is_same(segment.travelling());
    state.runs.push_back({held.start,
                          held.range.size(),
                          place,
                          {.master = part(segment.master()),
                           .exp_avg = moment(exp_avg),
                           .exp_avg_sq = moment(exp_avg_sq),
                           .gradient = at::Tensor(),
                           .travelling = is_whole ? at::Tensor() : part(segment.travelling()),
                           .first_element = held.range.begin,
                           .low = part(segment.low())}});
  }
}

shard_math::AdamWTensors Stretch::tensors() const {
  const shard_math::AdamWTensors& all = run->tensors;
  return {.master = of(all.master),
          .exp_avg = of(all.exp_avg),
          .exp_avg_sq = of(all.exp_avg_sq),
          .gradient = gradient(),
          .travelling = of(all.travelling),
          .first_element = all.first_element + first,
          .low = of(all.low)};
}

void add_stretches(std::vector<Stretch>& stretches, const SegmentMoments& state, const Run& run) {
  const int64_t most = rests(state) ? kStretch : run.numel;
  for (int64_t first = 0; first < run.numel; first += most) {
    stretches.push_back({&state, &run, first, std::min(most, run.numel - first)});
  }
}

void make_room(const std::vector<SegmentMoments>& segments, HostStore* host) {
  raise_limits(segments);
  for (const SegmentMoments& state : segments) {
    for (const Run& run : state.runs) {
      if (host != nullptr) {
        host->reserve(HostStore::bytes_in_slot(
            tensors_on_host({&state, &run, 0, std::min(kStretch, run.numel)})));
      }
    }
  }
}

StretchQueue::StretchQueue(std::vector<Stretch> stretches, HostStore* host)
    : stretches_(std::move(stretches)), host_(host) {
  if (host_ != nullptr) {
    host_->begin();
  }
}

StretchQueue::~StretchQueue() {
  if (host_ != nullptr) {
    host_->leave();
  }
}

// Its disks read one ahead of it.
void StretchQueue::fetch_from_host(size_t stretch) {
  if (stretch >= stretches_.size()) {
    return;
  }
  if (stretch + 1 < stretches_.size()) {
    for (const OnHost& next : tensors_on_host(stretches_[stretch + 1])) {
      next.home->read_ahead(next.view);
    }
  }
  const std::vector<OnHost> tensors = tensors_on_host(stretches_[stretch]);
  const bool has_gradient =
      stretches_[stretch].state->of.segment->gradients()->on_host() != nullptr;
  host_->fetch(tensors, tensors.size() - (has_gradient ? 1 : 0));
}

void StretchQueue::use_homes() {
  if (next_ + 1 < stretches_.size()) {
    for_each_home(stretches_[next_ + 1],
                  [](auto& home, const auto& view, bool /*writes*/) { home.fetch(view); });
  }
  std::vector<std::shared_ptr<void>> used;
  for_each_home(front(), [&](auto& home, const auto& view, bool writes) {
    used.push_back(home.use(view, writes));
  });
  in_use_.swap(used);
  used.clear();
  if (next_ > 0) {
    for_each_home(stretches_[next_ - 1],
                  [](auto& home, const auto& view, bool /*writes*/) { home.write_back(view); });
  }
}

shard_math::AdamWTensors StretchQueue::bring() {
  use_homes();
  shard_math::AdamWTensors tensors = front().tensors();
  if (host_ != nullptr) {
    if (next_ == 0) {
      fetch_from_host(0);
    }
    fetch_from_host(next_ + 1);
    const std::vector<at::Tensor>& on_device = host_->use();
    size_t place = 0;
    for (const auto& [tensor, home] : on_host(*front().state)) {
      tensors.*tensor = on_device[place++];
    }
  }
  return tensors;
}

void StretchQueue::pop() {
  if (host_ != nullptr) {
    host_->write_back();
  }
  ++next_;
}

}  // namespace sherd::detail
