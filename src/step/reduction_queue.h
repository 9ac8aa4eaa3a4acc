#pragma once
// Running reductions, which overlap with the backward that computes the gradients.

#include <deque>
#include <functional>
#include <vector>

#include "unit/segment_gradients.h"

namespace sherd::detail {

/// Follows each segment from its reduction over the shard group to the sum over all ranks, which it
/// starts when the reduction has ended. Reductions end in the order in which they began, so every
/// rank starts the same sums at the same point of the program.
class ReductionQueue {
 public:
  using Summed = std::function<void(SegmentGradients&)>;

  explicit ReductionQueue(SegmentCommunicators communicators) : communicators_(communicators) {}

  /// Sets what is called with each segment's sum at once: an optimizer that works in backward.
  void set_when_summed(Summed when_summed) { when_summed_ = std::move(when_summed); }
  [[nodiscard]] bool optimizes_in_backward() const { return static_cast<bool>(when_summed_); }
  /// Throws Error(Usage), naming `caller`, if such an optimizer uses gradients up.
  void check_gradients_are_kept(const char* caller) const;

  /// Its reduction over the shard group has been started. `all_reduce`: the sum over the replicas
  /// follows.
  void reduction_started(SegmentGradients& gradients, bool all_reduce);
  /// Waits for all of them, and sums those of `summed` that only earlier micro-batches wrote.
  /// Collective.
  void finish(const std::vector<SegmentGradients*>& summed);
  void abandon();
  /// From now on unsharded sums keep their memory after a step: captured graphs hold its address.
  void keep_unsharded_sums() { keeps_unsharded_sums_ = true; }

 private:
  struct Entry {
    SegmentGradients* gradients = nullptr;
    bool all_reduce = false;
  };
  void take_ended();
  void start_all_reduce(SegmentGradients* gradients);
  void finish_all_reduces(const std::vector<SegmentGradients*>& summed);
  void finish_sum(SegmentGradients& gradients) const;

  SegmentCommunicators communicators_;
  Summed when_summed_;
  std::deque<Entry> reducing_;
  std::vector<SegmentGradients*> all_reducing_;
  bool keeps_unsharded_sums_ = false;
};

}  // namespace sherd::detail
