#pragma once
// What AdamW keeps of a segment, and the chunks in which it is updated.

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/shard_math.h"
#include "step/step.h"

namespace sherd::detail {

/// A parameter of the segment that the optimizer updates, and the part that this rank holds.
struct Updated {
  const UnitParameter* parameter = nullptr;
  size_t place = 0;  ///< in the segment
  size_t group = 0;
  int64_t steps = 0;                      ///< updates that it has had
  int64_t begin = 0;                      ///< of the part, in this rank's piece of the segment
  int64_t numel = 0;                      ///< of the part, perhaps 0
  shard_math::AdamWTensors tensors = {};  ///< the part's, without the gradient
};

/// A tensor that an update writes and that is not resident.
struct StoredTensor {
  at::Tensor shard_math::AdamWTensors::*tensor;
  Storage* storage;
};

struct SegmentMoments {
  SegmentOfUnit of;
  std::unique_ptr<Storage> moments;  ///< exp_avg, then exp_avg_sq
  std::vector<Updated> updated;      ///< in order of places
  std::vector<StoredTensor> stored;

  [[nodiscard]] Storage& gradient() const { return of.segment->gradients()->storage(); }
  [[nodiscard]] bool is_resident() const { return stored.empty() && gradient().is_resident(); }
};

/// Allocates the moments of what is `updated`, and notes its parts.
void add_moments(SegmentMoments& state, c10::ScalarType dtype, const Model& model);

/// What is updated at once: a range of a parameter's part, or all of one that is in memory.
struct Chunk {
  const SegmentMoments* state = nullptr;
  const Updated* updated = nullptr;
  int64_t first = 0;  ///< in the part
  int64_t numel = 0;

  [[nodiscard]] at::Tensor of(const at::Tensor& all) const {
    return all.defined() ? all.narrow(0, first, numel) : all;
  }
  [[nodiscard]] at::Tensor gradient() const {
    return state->gradient().tensor().narrow(0, updated->begin + first, numel);
  }
  /// Views of where they are kept.
  [[nodiscard]] shard_math::AdamWTensors tensors() const;
  /// What must be brought: state->stored, then the gradient, unless it is held or resident.
  [[nodiscard]] std::vector<StoredView> stored() const;
};

void add_chunks(std::vector<Chunk>& chunks, const SegmentMoments& state, const Updated& updated);
/// Makes room for the chunks that are worked with at a time.
void make_room(const std::vector<SegmentMoments>& segments, CopyEngine* copies);

/// Chunks in order. What is not resident is read from its file, or copied from the host, one
/// chunk ahead, and goes back while the next is updated.
class ChunkQueue {
 public:
  /// `copies`: null if no state is on the host of a device.
  ChunkQueue(std::vector<Chunk> chunks, CopyEngine* copies);
  /// After an exception some are left.
  ~ChunkQueue();
  ChunkQueue(const ChunkQueue&) = delete;
  ChunkQueue& operator=(const ChunkQueue&) = delete;
  [[nodiscard]] bool empty() const { return next_ == chunks_.size(); }
  [[nodiscard]] const Chunk& front() const { return chunks_[next_]; }
  /// The tensors of front(), to be updated where the model is computed.
  [[nodiscard]] shard_math::AdamWTensors bring();
  /// front() has been updated.
  void pop();

 private:
  void read_ahead(size_t chunk);
  void use_files();
  void fetch_from_host(size_t chunk);

  std::vector<Chunk> chunks_;
  CopyEngine* copies_;
  size_t next_ = 0;
  std::vector<std::shared_ptr<void>> in_use_;  ///< of files
};

}  // namespace sherd::detail
