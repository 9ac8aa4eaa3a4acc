#pragma once
// Sums of gradients on their way through the replicas, beside the backward that makes them.

#include <deque>
#include <vector>

#include "segment_gradients.h"

namespace sherd::detail {

/// Follows each segment from its reduction over the shard group to the sum over all ranks: as soon
/// as the one has ended, the other is started. Reductions end in the order in which they began, so
/// every rank starts the same ones at the same point of the program.
class AllReduceQueue {
 public:
  explicit AllReduceQueue(SegmentCommunicators communicators) : communicators_(communicators) {}

  /// Its reduction over the shard group has been started; `all_reduce` says whether the sum over
  /// the replicas follows.
  void reduction_started(SegmentGradients& gradients, bool all_reduce);
  /// Waits for all of them, and sums those of `summed` that only earlier micro-batches wrote.
  /// Collective.
  void finish(const std::vector<SegmentGradients*>& summed);
  void abandon();

 private:
  struct Entry {
    SegmentGradients* gradients;
    bool all_reduce;
  };
  void start(SegmentGradients* gradients);
  void start_those_that_ended();

  SegmentCommunicators communicators_;
  std::deque<Entry> reducing_;
  std::vector<SegmentGradients*> all_reducing_;
};

}  // namespace sherd::detail
