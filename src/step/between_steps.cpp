// Shards and gradients outside of forward and backward: publishing, writers.

#include "sherd/error.h"
#include "step/step.h"

namespace sherd::detail {

Step::Step(Model& model)
    : model_(model),
      progress_(model.units.size()),
      schedule_(model.options.prefetch_depth, model.first_order) {
  publish();
}

Step::~Step() {
  try {
    abandon();     // reductions under way write into memory that is freed here
  } catch (...) {  // NOLINT(bugprone-empty-catch): the other ranks are gone, and so is this one
  }
}

void Step::require_between_steps(const std::string& operation) {
  const auto refuse_inside = [&](const std::string& place_and_remedy) {
    throw Error(ExitCode::Usage, "[" + operation + "] was called inside " + place_and_remedy);
  };
  if (full_parameters_shown_) {
    refuse_inside("with_full_parameters: call it after that.");
  }
  for (const auto& unit : model_.units) {
    if (progress(*unit).in_forward()) {
      refuse_inside("the forward of unit '" + unit->name() + "': call it between steps.");
    }
  }
  if (backward_ != Backward::None) {
    if (inside_backward()) {
      refuse_inside("a backward: call it between steps.");
    }
    abandon();  // the last backward ended in an exception: its end callback never ran
  }
}

void Step::refuse_while_full_parameters_shown(const std::string& what) const {
  if (full_parameters_shown_) {
    throw Error(ExitCode::Usage, "[with_full_parameters] " + what +
                                     " inside it, where parameters may only be read and "
                                     "written: do it afterwards.");
  }
}

void Step::unshard(const std::vector<UnitState*>& units) {
  require_between_steps("unshard");
  check_not_torn("unshard");
  require_values(model_, "unshard");
  close_update_window();
  for (UnitState* unit : units) {
    unit->unshard();
  }
  for (UnitState* unit : units) {
    unit->wait_unshard();
  }
}

void Step::reshard(const std::vector<UnitState*>& units) {
  require_between_steps("reshard");
  for (UnitState* unit : units) {
    std::erase(gathered_ahead_, unit);
    unit->reshard();
  }
}

void Step::reshard_all() {
  refuse_while_full_parameters_shown("shards were to be updated or read");
  gathered_ahead_.clear();
  for (const auto& unit : model_.units) {
    unit->reshard();
  }
  for (const SegmentOfUnit& of : model_.segments) {
    of.segment->forget_post_forward_shard();
  }
}

void Step::await_readers() {
  reshard_all();
  for (const SegmentOfUnit& of : model_.segments) {
    begin_update(model_, of);
  }
}

void Step::publish() {
  reshard_all();
  for (const SegmentOfUnit& of : model_.segments) {
    begin_update(model_, of);
    model_.collectives.run(Work::Local, "publication", of.unit->name(),
                           [&] { of.segment->write_travelling_from_master(); });
    of.segment->publish();
  }
  rest(model_);
}

void Step::publish_values() {
  for (const auto& unit : model_.units) {
    for (UnitParameter& parameter : unit->parameters()) {
      parameter.has_values = true;
    }
  }
  model_.replicas_differ.clear();
  publish();
}

void Step::limit_gathered() {
  model_.arena.set_limit(gathered_limit_bytes(model_));
}

void Step::zero_grad() {
  gradients_.forget();
  for (const MasterView& view : master_views_) {
    view.tensor.mutable_grad().reset();
  }
}

ShardWriter::ShardWriter(Step& step, const std::string& operation)
    : step_(step), was_torn_by_(step.torn_values()) {
  step_.require_between_steps(operation);
  step_.await_readers();
  step_.writing_begins(State::Values, operation);
}

void ShardWriter::publish() {
  step_.model().replicas_differ.clear();
  step_.publish();
  step_.writing_ended(State::Values);
  if (was_torn_by_ && !step_.all_have_values()) {
    step_.writing_begins(State::Values, *was_torn_by_);
  }
}

}  // namespace sherd::detail
