// What an exception leaves: a step that has been given up, so that the next one starts clean.

#include <utility>

#include "step/step.h"
#include "step/unit_use.h"

namespace sherd::detail {

void Step::leave_failed_backward() {
  if (backward_ == Backward::Failed) {
    abandon();
  }
}

// After a failed forward gradients of earlier micro-batches are as they were, after a failed
// backward there are none: nobody can tell which sums hold a part of it.
void Step::abandon() {
  const bool in_backward = std::exchange(backward_, Backward::None) != Backward::None;
  gathered_ahead_.clear();
  for (UnitProgress& unit : progress_) {
    for (UnitUse* use : unit.uses) {
      use->set_in_backward(false);
    }
    unit = UnitProgress();
  }
  if (in_backward) {
    ++failed_backwards_;
    for (const SegmentOfUnit& of : model_.segments) {
      if (of.segment->gradients() != nullptr) {
        of.segment->gradients()->abandon();
      }
    }
    zero_grad();
  }
  for (const auto& unit : model_.units) {
    unit->reshard();
  }
  if (!model_.collectives.peers_lost()) {
    reductions_.abandon();
    model_.communicators->abandon(in_backward);
  }
  expect_update();
}

}  // namespace sherd::detail
