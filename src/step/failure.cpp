// After an exception: gives up the step, so that the next one starts clean.

#include <algorithm>
#include <optional>
#include <utility>

#include "sherd/error.h"
#include "step/step.h"

namespace sherd::detail {

void Step::leave_failed_backward() {
  // No backward can be running if its callback is gone, or if the caller is outside of any.
  const bool is_over =
      backward_ == Backward::Running && (end_callback_.expired() || !inside_backward());
  if (is_over || backward_ == Backward::Failed) {
    abandon();
  }
}

void Step::mark_lost_as_torn() {
  if (!model_.offload->take_failure()) {
    return;
  }
  const char* const by = "a transfer to or from a disk";
  const auto update = torn_by_.find(State::TrainedValues);
  torn_by_.emplace(State::Values, update == torn_by_.end() ? by : update->second);
  if (model_.offload->file(Part::Optimizer) != nullptr) {
    torn_by_.emplace(State::Optimizer, by);
  }
}

void Step::writing_begins(State state, const std::string& operation) {
  mark_lost_as_torn();
  torn_by_[state] = operation;
}

void Step::writing_ended(State state) {
  torn_by_.erase(state);
  if (state == State::Values) {
    torn_by_.erase(State::TrainedValues);
  }
}

bool Step::all_have_values() const {
  return std::ranges::all_of(model_.units, [](const auto& unit) {
    return std::ranges::all_of(unit->parameters(), &UnitParameter::has_values);
  });
}

// An operation that writes a part of the parameters marks that part itself.
std::optional<std::string> Step::torn_values() {
  mark_lost_as_torn();
  const bool may_be_any = torn_by_.contains(State::Values);
  if (!may_be_any && !torn_by_.contains(State::TrainedValues)) {
    return std::nullopt;
  }
  if (all_have_values()) {
    for (const auto& unit : model_.units) {
      for (UnitParameter& parameter : unit->parameters()) {
        parameter.has_values = !may_be_any && !parameter.trainable;
      }
    }
  }
  return torn_by_.begin()->second;
}

void Step::check_not_torn(const std::string& operation) {
  mark_lost_as_torn();
  if (torn_by_.empty()) {
    return;
  }
  const auto& [state, by] = *torn_by_.begin();
  throw Error(ExitCode::Usage,
              "[" + operation + "] " +
                  (state != State::Optimizer ? "the parameters of this model are"
                                             : "the state of this model's optimizer is") +
                  " torn: " + by +
                  " ended in an error half-way, so that some are new and others old. Load a "
                  "checkpoint (load_checkpoint), or all of them in another way, before they are "
                  "used.");
}

void Step::check_whole(const std::string& operation) {
  check_not_torn(operation);
  const c10::Device device = model_.mesh.world().device();
  if (!device.is_cpu() && !device.is_meta()) {
    check_exchanges(model_, [&] { current_stream(device).synchronize(); });
  }
}

// A failed forward leaves the gradients of earlier micro-batches; a failed backward leaves none,
// since it is unknown which sums hold a part of it. A forward that the backward ran inside goes on.
void Step::abandon() {
  const bool in_backward = std::exchange(backward_, Backward::None) != Backward::None;
  gathered_ahead_.clear();
  for (UnitProgress& unit : progress_) {
    unit.forget();
  }
  if (in_backward) {
    ++failed_backwards_;
    for (const SegmentOfUnit& of : model_.trainable) {
      of.segment->gradients()->abandon();
    }
    zero_grad();
  }
  for (const auto& unit : model_.units) {
    unit->reshard();
  }
  gradients_.abandon_reductions();
  if (!model_.collectives.peers_lost()) {
    model_.communicators->shards->abandon();
    if (in_backward && model_.communicators->replicas != nullptr) {
      model_.communicators->replicas->abandon();  // else it holds sums of earlier micro-batches
    }
    for (const auto& unit : model_.units) {
      if (progress(*unit).in_forward()) {
        unit->unshard(/*in_evaluation=*/unit->in_full_precision());
        unit->wait_unshard();
      }
    }
  }
  if (!in_forward()) {
    expect_update();
  }
}

}  // namespace sherd::detail
