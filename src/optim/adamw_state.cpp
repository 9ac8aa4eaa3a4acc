#include "optim/adamw_state.h"

#include <algorithm>
#include <map>
#include <utility>

namespace sherd::detail {

namespace {

constexpr int64_t kChunk = int64_t{1} << 20;

std::vector<StoredTensor> stored_of(const SegmentMoments& state) {
  using Tensors = shard_math::AdamWTensors;
  const FlatSegment& segment = *state.of.segment;
  const bool is_whole = segment.master().is_same(segment.travelling());
  std::vector<StoredTensor> all = {
      {is_whole ? &Tensors::master : &Tensors::travelling, &segment.parameters()},
      {&Tensors::exp_avg, state.moments.get()},
      {&Tensors::exp_avg_sq, state.moments.get()}};
  if (Storage* const master = segment.separate_master()) {
    all.insert(all.begin(),
               {segment.has_split_master() ? &Tensors::low : &Tensors::master, master});
  }
  std::erase_if(all, [](const StoredTensor& one) { return one.storage->is_resident(); });
  return all;
}

}  // namespace

void add_moments(SegmentMoments& state, c10::ScalarType dtype, const Model& model) {
  const FlatSegment& segment = *state.of.segment;
  const SegmentLayout& layout = segment.layout();
  // Moments lie as the shard does, or packed if the optimizer leaves some parameters alone.
  const bool as_shard = state.updated.size() == layout.places.size();
  const auto alignment = kAlignmentBytes / static_cast<int64_t>(c10::elementSize(layout.dtype));
  std::vector<int64_t> offsets;
  int64_t numel = 0;
  for (Updated& updated : state.updated) {
    const HeldPart held = state.of.unit->held_part(*updated.parameter);
    const auto part = [&held](const at::Tensor& shard) {
      return shard.defined() ? held.of(shard) : at::Tensor();
    };
    updated.begin = held.start;
    updated.numel = held.range.size();
    updated.tensors.master = part(segment.master());
    if (!segment.master().is_same(segment.travelling())) {
      updated.tensors.travelling = part(segment.travelling());
    }
    updated.tensors.first_element = held.range.begin;
    updated.tensors.low = part(segment.low());
    offsets.push_back(as_shard ? held.start : numel);
    numel += (updated.numel + alignment - 1) / alignment * alignment;
  }
  numel = as_shard ? layout.shard_numel : numel;
  state.moments =
      model.offload->make(Part::Optimizer, 2 * numel, dtype, MemoryKind::OptimizerState);
  const at::Tensor moments = state.moments->tensor();
  for (size_t i = 0; i < offsets.size(); ++i) {
    Updated& updated = state.updated[i];
    updated.tensors.exp_avg = moments.narrow(0, offsets[i], updated.numel);
    updated.tensors.exp_avg_sq = moments.narrow(0, numel + offsets[i], updated.numel);
  }
  state.stored = stored_of(state);
}

shard_math::AdamWTensors Chunk::tensors() const {
  shard_math::AdamWTensors part = updated->tensors;
  for (at::Tensor* const tensor :
       {&part.master, &part.exp_avg, &part.exp_avg_sq, &part.travelling, &part.low}) {
    *tensor = of(*tensor);
  }
  part.gradient = gradient();
  part.first_element += first;
  return part;
}

std::vector<StoredView> Chunk::stored() const {
  std::vector<StoredView> views;
  for (const auto& [tensor, storage] : state->stored) {
    views.push_back({storage, of(updated->tensors.*tensor)});
  }
  if (!state->gradient().is_resident() && !state->gradient().is_held()) {
    views.push_back({&state->gradient(), gradient()});
  }
  return views;
}

void add_chunks(std::vector<Chunk>& chunks, const SegmentMoments& state, const Updated& updated) {
  const int64_t most = state.is_resident() ? updated.numel : kChunk;
  for (int64_t first = 0; first < updated.numel; first += most) {
    chunks.push_back({&state, &updated, first, std::min(most, updated.numel - first)});
  }
}

void make_room(const std::vector<SegmentMoments>& segments, CopyEngine* copies) {
  for (const SegmentMoments& state : segments) {
    for (const Updated& updated : state.updated) {
      const Chunk largest{&state, &updated, 0, std::min(kChunk, updated.numel)};
      const std::vector<StoredView> views = largest.stored();
      std::map<FileStore*, int64_t> bytes;
      for (const StoredView& one : views) {
        if (FileStore* const file = one.storage->file()) {
          bytes[file] += static_cast<int64_t>(one.view.nbytes()) + FileChunk::kBytes;
        }
      }
      // One chunk that is updated, one that is read, and two that are written; of a device one
      // more, whose pages are copied.
      for (const auto& [file, of_a_chunk] : bytes) {
        file->raise_limit((file->is_behind_host() ? 5 : 4) * of_a_chunk);
      }
      if (copies != nullptr) {
        copies->reserve(CopyEngine::bytes_in_slot(views));
      }
    }
  }
}

ChunkQueue::ChunkQueue(std::vector<Chunk> chunks, CopyEngine* copies)
    : chunks_(std::move(chunks)), copies_(copies) {
  if (copies_ != nullptr) {
    copies_->begin();
  }
}

ChunkQueue::~ChunkQueue() {
  if (copies_ != nullptr) {
    copies_->abandon();
  }
}

void ChunkQueue::read_ahead(size_t chunk) {
  if (chunk < chunks_.size()) {
    for (const StoredView& next : chunks_[chunk].stored()) {
      next.storage->read_ahead(next.view);
    }
  }
}

void ChunkQueue::fetch_from_host(size_t chunk) {
  if (chunk >= chunks_.size()) {
    return;
  }
  read_ahead(chunk + 1);
  copies_->fetch(chunks_[chunk].stored(), chunks_[chunk].state->stored.size());
}

void ChunkQueue::use_files() {
  read_ahead(next_ + 1);
  std::vector<std::shared_ptr<void>> used;
  for (const StoredView& one : front().stored()) {
    const bool writes = used.size() < front().state->stored.size();
    used.push_back(one.storage->use(one.view, writes));
  }
  in_use_.swap(used);
  used.clear();
  if (next_ > 0) {
    for (const StoredView& before : chunks_[next_ - 1].stored()) {
      before.storage->write_back(before.view);
    }
  }
}

shard_math::AdamWTensors ChunkQueue::bring() {
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
  const std::vector<StoredTensor>& written = front().state->stored;
  for (size_t i = 0; i < on_device.size(); ++i) {
    (i < written.size() ? tensors.*written[i].tensor : tensors.gradient) = on_device[i];
  }
  return tensors;
}

void ChunkQueue::pop() {
  if (copies_ != nullptr) {
    copies_->write_back();
  }
  ++next_;
}

}  // namespace sherd::detail
