#include "step/reduction_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "sherd/error.h"

namespace sherd::detail {

void ReductionQueue::check_gradients_are_kept(const char* caller) const {
  if (optimizes_in_backward()) {
    throw Error(ExitCode::Usage,
                std::string(caller) +
                    ": the optimizer works in backward, so gradients are gone when it ends: build "
                    "AdamW without in_backward to clip or unscale them.");
  }
}

void ReductionQueue::reduction_started(SegmentGradients& gradients, bool all_reduce) {
  reducing_.push_back({&gradients, all_reduce});
  take_ended();
}

void ReductionQueue::finish_sum(SegmentGradients& gradients) const {
  if (when_summed_) {
    gradients.run_all_reduce_hook();
    when_summed_(gradients);
  }
  gradients.put_away();
}

void ReductionQueue::start_all_reduce(SegmentGradients* gradients) {
  gradients->start_all_reduce();
  if (std::ranges::find(all_reducing_, gradients) == all_reducing_.end()) {
    all_reducing_.push_back(gradients);  // gathered once, at the end of backward
  }
}

void ReductionQueue::take_ended() {
  const auto in_flight = static_cast<size_t>(communicators_.shards->reductions_in_flight());
  while (reducing_.size() > in_flight) {
    const Entry ended = reducing_.front();
    reducing_.pop_front();
    if (std::ranges::find(reducing_, ended.gradients, &Entry::gradients) != reducing_.end()) {
      continue;  // the unit has been reduced again: the later one ends the sum
    }
    if (!keeps_unsharded_sums_) {
      ended.gradients->free_unsharded_sum();
    }
    if (communicators_.replicas == nullptr) {
      finish_sum(*ended.gradients);
    } else if (ended.all_reduce) {
      start_all_reduce(ended.gradients);
    }
  }
}

void ReductionQueue::finish(const std::vector<SegmentGradients*>& summed) {
  communicators_.shards->finish_reductions();
  take_ended();
  if (communicators_.replicas != nullptr) {
    finish_all_reduces(summed);
  }
  for (SegmentGradients* gradients : summed) {
    gradients->run_all_reduce_hook();
  }
}

void ReductionQueue::finish_all_reduces(const std::vector<SegmentGradients*>& summed) {
  for (SegmentGradients* gradients : summed) {
    if (gradients->awaits_all_reduce()) {
      start_all_reduce(gradients);
    }
  }
  communicators_.replicas->finish_reductions();
  std::deque<SegmentGradients*> gathered;
  const auto end_oldest = [&] {
    gathered.front()->wait_sum();
    finish_sum(*gathered.front());
    gathered.pop_front();
  };
  for (SegmentGradients* gradients : std::exchange(all_reducing_, {})) {
    gradients->gather_sum();
    gathered.push_back(gradients);
    if (!gradients->storage().is_resident() && gathered.size() > 1) {
      end_oldest();  // of those that rest elsewhere few are in memory
    }
  }
  while (!gathered.empty()) {
    end_oldest();
  }
}

void ReductionQueue::abandon() {
  reducing_.clear();
  all_reducing_.clear();
}

}  // namespace sherd::detail
