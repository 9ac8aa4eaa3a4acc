#include "all_reduce_queue.h"

namespace sherd::detail {

void AllReduceQueue::reduction_started(SegmentGradients& gradients, bool all_reduce) {
  if (communicators_.replicas == nullptr) {
    return;
  }
  reducing_.push_back({&gradients, all_reduce});
  start_those_that_ended();
}

void AllReduceQueue::start(SegmentGradients* gradients) {
  gradients->start_all_reduce();
  all_reducing_.push_back(gradients);
}

void AllReduceQueue::start_those_that_ended() {
  const auto in_flight = static_cast<size_t>(communicators_.shards->reductions_in_flight());
  while (reducing_.size() > in_flight) {
    const Entry ended = reducing_.front();
    reducing_.pop_front();
    if (ended.all_reduce) {
      start(ended.gradients);
    }
  }
}

void AllReduceQueue::finish(const std::vector<SegmentGradients*>& summed) {
  communicators_.shards->finish_reductions();
  if (communicators_.replicas == nullptr) {
    return;
  }
  start_those_that_ended();
  for (SegmentGradients* gradients : summed) {
    if (gradients->awaits_all_reduce()) {
      start(gradients);
    }
  }
  communicators_.replicas->finish_reductions();
  for (SegmentGradients* gradients : all_reducing_) {
    gradients->gather_sum();
  }
  for (SegmentGradients* gradients : all_reducing_) {
    gradients->wait_sum();
  }
  all_reducing_.clear();
}

void AllReduceQueue::abandon() {
  reducing_.clear();
  all_reducing_.clear();
}

}  // namespace sherd::detail
