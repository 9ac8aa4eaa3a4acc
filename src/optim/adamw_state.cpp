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

constexpr int64_t kStretch = int64_t{1} << 20;

std::vector<StoredTensor> stored_of(const SegmentMoments& state) {
  using Tensors = shard_math::AdamWTensors;
  const FlatSegment& segment = *state.of.segment;
  const bool is_whole = segment.master().is_same(segment.travelling());
  std::vector<StoredTensor> all = {
      {is_whole ? &Tensors::master : &Tensors::travelling, &segment.parameters()},
      {&Tensors::exp_avg, state.moments.get()},
      {&Tensors::exp_avg_sq, state.moments.get()},
      {&Tensors::gradient, &segment.gradients()->storage()}};
  if (Storage* const master = segment.separate_master()) {
    all.insert(all.begin(),
               {segment.has_split_master() ? &Tensors::low : &Tensors::master, master});
  }
  std::erase_if(all, [](const StoredTensor& one) { return one.storage->is_resident(); });
  return all;
}

// A gradient that is held may be read where it is.
bool is_there(at::Tensor shard_math::AdamWTensors::*tensor, const Storage& storage) {
  return tensor == &shard_math::AdamWTensors::gradient && storage.is_held();
}

bool is_gradient(const StoredView& one, const Stretch& stretch) {
  return one.storage == &stretch.state->of.segment->gradients()->storage();
}

// One stretch that is updated, one that is read, and two that are written; of a device one more,
// whose pages are copied.
void raise_limits(const std::vector<SegmentMoments>& segments) {
  for (const SegmentMoments& state : segments) {
    for (const Run& run : state.runs) {
      const Stretch largest{&state, &run, 0, std::min(kStretch, run.numel)};
      std::map<FileStore*, int64_t> bytes;
      for (const StoredView& one : largest.stored()) {
        if (FileStore* const file = one.storage->file()) {
          bytes[file] += static_cast<int64_t>(one.view.nbytes()) + FileChunk::kBytes;
        }
      }
      for (const auto& [file, of_a_stretch] : bytes) {
        const int64_t in_flight = file->is_behind_host() ? 5 : 4;
        file->raise_limit(in_flight * of_a_stretch);
      }
    }
  }
}

}  // namespace

void add_moments(SegmentMoments& state, c10::ScalarType dtype, const Model& model) {
  const FlatSegment& segment = *state.of.segment;
  const auto [offsets, numel] = lay_out_moments(state);
  state.moments =
      model.offload->make(Part::Optimizer, 2 * numel, dtype, MemoryKind::OptimizerState);
  const at::Tensor exp_avg = state.moments->tensor().narrow(0, 0, numel);
  const at::Tensor exp_avg_sq = state.moments->tensor().narrow(0, numel, numel);
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
  state.stored = stored_of(state);
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

std::vector<StoredView> Stretch::stored() const {
  std::vector<StoredView> views;
  for (const auto& [tensor, storage] : state->stored) {
    if (!is_there(tensor, *storage)) {
      views.push_back({storage, tensor == &shard_math::AdamWTensors::gradient
                                    ? gradient()
                                    : of(run->tensors.*tensor)});
    }
  }
  return views;
}

void add_stretches(std::vector<Stretch>& stretches, const SegmentMoments& state, const Run& run) {
  const int64_t most = state.stored.empty() ? run.numel : kStretch;
  for (int64_t first = 0; first < run.numel; first += most) {
    stretches.push_back({&state, &run, first, std::min(most, run.numel - first)});
  }
}

void make_room(const std::vector<SegmentMoments>& segments, CopyEngine* copies) {
  raise_limits(segments);
  for (const SegmentMoments& state : segments) {
    for (const Run& run : state.runs) {
      if (copies != nullptr) {
        const Stretch largest{&state, &run, 0, std::min(kStretch, run.numel)};
        copies->reserve(CopyEngine::bytes_in_slot(largest.stored()));
      }
    }
  }
}

StretchQueue::StretchQueue(std::vector<Stretch> stretches, CopyEngine* copies)
    : stretches_(std::move(stretches)), copies_(copies) {
  if (copies_ != nullptr) {
    copies_->begin();
  }
}

StretchQueue::~StretchQueue() {
  if (copies_ != nullptr) {
    copies_->abandon();
  }
}

// Files are read one stretch ahead of it.
void StretchQueue::fetch_from_host(size_t stretch) {
  if (stretch >= stretches_.size()) {
    return;
  }
  if (stretch + 1 < stretches_.size()) {
    for (const StoredView& next : stretches_[stretch + 1].stored()) {
      next.storage->read_ahead(next.view);
    }
  }
  const std::vector<StoredView> views = stretches_[stretch].stored();
  const bool has_gradient = !views.empty() && is_gradient(views.back(), stretches_[stretch]);
  copies_->fetch(views, views.size() - (has_gradient ? 1 : 0));
}

void StretchQueue::use_files() {
  if (next_ + 1 < stretches_.size()) {
    for (const StoredView& next : stretches_[next_ + 1].stored()) {
      next.storage->read_ahead(next.view);
    }
  }
  std::vector<std::shared_ptr<void>> used;
  for (const StoredView& one : front().stored()) {
    used.push_back(one.storage->use(one.view, !is_gradient(one, front())));
  }
  in_use_.swap(used);
  used.clear();
  if (next_ > 0) {
    for (const StoredView& before : stretches_[next_ - 1].stored()) {
      before.storage->write_back(before.view);
    }
  }
}

shard_math::AdamWTensors StretchQueue::bring() {
  shard_math::AdamWTensors tensors = front().tensors();
  if (copies_ == nullptr) {
    use_files();
    return tensors;
  }
  if (next_ == 0) {
    fetch_from_host(0);
  }
  fetch_from_host(next_ + 1);
  const std::vector<at::Tensor>& on_device = copies_->wait();
  size_t place = 0;
  for (const auto& [tensor, storage] : front().state->stored) {
    if (!is_there(tensor, *storage)) {
      tensors.*tensor = on_device[place++];
    }
  }
  return tensors;
}

void StretchQueue::pop() {
  if (copies_ != nullptr) {
    copies_->write_back();
  }
  ++next_;
}

}  // namespace sherd::detail
