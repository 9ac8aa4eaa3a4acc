// Shards and gradients outside of forward and backward: publishing, update windows, writers.

#include "sherd/error.h"
#include "step/autograd_hooks.h"
#include "step/step.h"

namespace sherd::detail {

Step::Step(Model& model)
    : model_(model),
      progress_(model.units.size()),
      schedule_(model.options.prefetch_depth, model.first_order),
      reductions_(model.communicators->all()) {
  publish();
}

Step::~Step() {
  try {
    abandon();     // reductions under way write into memory that is freed here
  } catch (...) {  // NOLINT(bugprone-empty-catch): the other ranks are gone, and so is this one
  }
}

void Step::require_between_steps(const std::string& operation) {
  if (full_parameters_shown_) {
    throw Error(ExitCode::Usage, "[" + operation +
                                     "] was called inside with_full_parameters: call it after "
                                     "that.");
  }
  for (const auto& unit : model_.units) {
    if (progress(*unit).in_forward()) {
      throw Error(ExitCode::Usage, "[" + operation + "] was called inside the forward of unit '" +
                                       unit->name() + "': call it between steps.");
    }
  }
  if (backward_ != Backward::None && inside_backward()) {
    throw Error(ExitCode::Usage,
                "[" + operation + "] was called inside a backward: call it between steps.");
  }
  if (backward_ != Backward::None) {
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
  master_views_.forget_gradients();
}

namespace {

// Optimizers of LibTorch need masters and gradients that are fp32 tensors in memory.
void check_fp32(const Model& model) {
  if (model.offload->any()) {
    const bool is_on_disk = !model.offload->files().empty();
    throw Error(ExitCode::Usage,
                std::string("[optim_parameters] a part of the model is stored on ") +
                    (is_on_disk ? "a disk" : "the host") +
                    " (ShardOptions::offload), where optimizers of LibTorch do not find it: use "
                    "sherd::AdamW, or leave " +
                    (is_on_disk ? "the folders empty, and " : "") +
                    "optimizer_on_host, gradients_on_host and parameters_on_host.");
  }
  for (const SegmentOfUnit& of : model.segments) {
    const Master master = of.segment->master_format();
    const bool is_narrow = of.segment->layout().reduce_dtype != c10::kFloat;
    if (master != Master::Float32 || is_narrow) {
      throw Error(ExitCode::Usage,
                  "[optim_parameters] unit '" + of.unit->name() + "' has " +
                      (is_narrow ? "gradients in BFloat16 (Precision::reduce_dtype)"
                                 : std::string("masters in the format ") + name_of(master) +
                                       " (Precision::master)") +
                      ", and optimizers of LibTorch need fp32 tensors: use sherd::AdamW, or " +
                      (is_narrow ? "reduce_dtype Float." : "Master::Float32."));
    }
  }
}

}  // namespace

torch::OrderedDict<std::string, at::Tensor> Step::hand_out_masters() {
  if (!masters_handed_out()) {
    check_fp32(model_);
    master_views_.make(model_);
    open_update_window();
    gradients_.apply_pending_factor();  // views show clipped gradients
    show_gradients();
  }
  return master_views_.by_name();
}

void Step::show_gradients() {
  if (masters_handed_out()) {
    gradients_.agree_on_use();
    master_views_.show_gradients();
  }
}

void Step::open_update_window() {
  if (awaits_update_window()) {
    await_readers();
    update_window_is_open_ = true;
  }
}

void Step::close_update_window() {
  if (is_idle() && graph_freed_elsewhere_.exchange(false)) {
    open_update_window();
  }
  if (update_window_is_open_) {
    publish();
    update_window_is_open_ = false;  // stays open where that failed, to be published again
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
