#pragma once
// What AdamW keeps of a segment, and the stretches in which it is updated.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/shard_math.h"
#include "step/step.h"

namespace sherd::detail {

/// A contiguous range of this rank's piece that belongs to one parameter.
struct Run {
  int64_t begin = 0;                 ///< in the piece
  int64_t numel = 0;                 ///< perhaps 0
  size_t place = 0;                  ///< of the parameter in the segment
  shard_math::AdamWTensors tensors;  ///< without the gradient
};

/// A parameter of the segment that the optimizer updates.
struct Updated {
  const UnitParameter* parameter = nullptr;
  size_t group = 0;
  int64_t steps = 0;  ///< updates that it has had
};

struct SegmentMoments {
  SegmentOfUnit of;
  Buffer exp_avg_buffer;
  Buffer exp_avg_sq_buffer;
  std::unique_ptr<SegmentHome> home;  ///< of both, where a CPU has them on a disk
  std::map<size_t, Updated> updated;  ///< by place in the segment
  std::vector<Run> runs;              ///< of those that this rank holds a part of
  std::unique_ptr<HostHome> on_host;  ///< of both, where a device has them there or behind it
};

/// Allocates the moments of what is `updated`, and makes its runs.
void add_moments(SegmentMoments& state, c10::ScalarType dtype, const Model& model);

/// What is updated at once: a part of a run, or the whole of one that is in memory.
struct Stretch {
  const SegmentMoments* state = nullptr;
  const Run* run = nullptr;
  int64_t first = 0;  ///< in the run
  int64_t numel = 0;

  [[nodiscard]] at::Tensor of(const at::Tensor& all) const {
    return all.defined() ? all.narrow(0, first, numel) : all;
  }
  [[nodiscard]] at::Tensor gradient() const {
    return state->of.segment->gradients()->shard().narrow(0, run->begin + first, numel);
  }
  /// Where they lie.
  [[nodiscard]] shard_math::AdamWTensors tensors() const;
};

void add_stretches(std::vector<Stretch>& stretches, const SegmentMoments& state, const Run& run);
/// What rests elsewhere has room for the stretches that are worked with at a time.
void make_room(const std::vector<SegmentMoments>& segments, HostStore* host);

/// Stretches in order, each brought to where it is updated: what rests on a disk is read, and what
/// rests on the host copied, one stretch ahead, and goes back while the next is updated.
class StretchQueue {
 public:
  /// `host`: null where nothing rests there.
  StretchQueue(std::vector<Stretch> stretches, HostStore* host);
  /// After an exception some are left.
  ~StretchQueue();
  StretchQueue(const StretchQueue&) = delete;
  StretchQueue& operator=(const StretchQueue&) = delete;
  [[nodiscard]] bool empty() const { return next_ == stretches_.size(); }
  [[nodiscard]] const Stretch& front() const { return stretches_[next_]; }
  /// The tensors of front(), to be updated where the model is computed.
  [[nodiscard]] shard_math::AdamWTensors bring();
  /// front() has been updated.
  void pop();

 private:
  void use_homes();
  void fetch_from_host(size_t stretch);

  std::vector<Stretch> stretches_;
  HostStore* host_;
  size_t next_ = 0;
  std::vector<std::shared_ptr<void>> in_use_;  ///< homes
};

}  // namespace sherd::detail
