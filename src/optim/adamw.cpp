#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <c10/core/StreamGuard.h>

#include "optim/adamw_state.h"
#include "sherd/memory.h"
#include "sherd/optim.h"
#include "storage/own_work.h"

namespace sherd {

using detail::Chunk;
using detail::ChunkQueue;
using detail::SegmentMoments;
using detail::Updated;

namespace {

constexpr float kLeaveAll = std::numeric_limits<float>::quiet_NaN();  // of AdamWTensors::grad_scale

kernels::AdamWStep step_numbers(const AdamWOptions& o, int64_t step, double grad_scale) {
  const double correction1 = 1.0 - std::pow(o.betas.first, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(o.betas.second, static_cast<double>(step));
  return {.keep = static_cast<float>(1.0 - o.lr * o.weight_decay),
          .step_size = static_cast<float>(o.lr / correction1),
          .one_minus_beta1 = static_cast<float>(1.0 - o.betas.first),
          .beta2 = static_cast<float>(o.betas.second),
          .one_minus_beta2 = static_cast<float>(1.0 - o.betas.second),
          .bias_correction2_sqrt = static_cast<float>(std::sqrt(correction2)),
          .eps = static_cast<float>(o.eps),
          .grad_scale = static_cast<float>(grad_scale),
          .number = static_cast<uint32_t>(step)};
}

void check_number(const std::string& name, double value) {
  if (!(value >= 0) || !std::isfinite(value)) {
    throw Error(ExitCode::Usage,
                name + " must be a number of at least 0, got " + std::to_string(value) + ".");
  }
}

void check_options(const AdamWOptions& options) {
  check_number("[AdamW] lr", options.lr);
  for (const double beta : {options.betas.first, options.betas.second}) {
    if (!(beta >= 0 && beta < 1)) {
      throw Error(ExitCode::Usage, "[AdamW] betas must be at least 0 and below 1, got " +
                                       std::to_string(beta) + ".");
    }
  }
  check_number("[AdamW] eps", options.eps);
  check_number("[AdamW] weight_decay", options.weight_decay);
}

}  // namespace

struct AdamW::Impl {
  explicit Impl(ShardedModule sharded) : model(std::move(sharded)) {}
  ~Impl() {
    if (mode.in_backward) {
      engine().step.gradients().set_when_summed({});
    }
    detail::quietly([this] { await_update(); });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ShardedModule model;
  AdamWMode mode;
  std::vector<AdamWOptions> groups;  ///< the last one is for parameters in no group
  std::vector<double> initial_lrs;   ///< by group
  std::vector<SegmentMoments> segments;
  int64_t steps = 0;
  /// The last step, where the device decides whether it is made.
  struct Asked {
    HostCopy found_inf;
    std::vector<Updated*> counted;
  };
  std::optional<Asked> asked;
  std::set<const detail::SegmentGradients*> updated_in_backward;
  int64_t failures_seen = 0;  ///< of backwards, by updated_in_backward
  /// Of the last step, where the host does not know it; see AdamWTensors. Kept while it is read.
  at::Tensor grad_scale;

  [[nodiscard]] detail::Engine& engine() const { return detail::engine_of(model); }
  void step(const at::Tensor& found_inf);
  [[nodiscard]] at::Tensor grad_scale_with(const at::Tensor& found_inf) const;
  void uncount_what_was_left_out();
  [[nodiscard]] bool is_updated(const SegmentMoments& state, const Updated& updated) const;
  void await_update() const;
  void update(const std::vector<SegmentMoments*>& due);
  void update_in_backward(detail::SegmentGradients& gradients);
  void check_there_are_gradients() const;
  void add_segment(const detail::SegmentOfUnit& of, const std::vector<ParamGroup>& param_groups);
  [[nodiscard]] AdamWOptions& group(size_t index);
  [[nodiscard]] Updated& updated(const std::string& parameter);
};

AdamW::AdamW(ShardedModule model, AdamWOptions options, std::vector<ParamGroup> groups,
             AdamWMode mode)
    : impl_(std::make_unique<Impl>(std::move(model))) {
  if (mode.moments_dtype != c10::kFloat && mode.moments_dtype != c10::kBFloat16) {
    throw Error(ExitCode::Usage, std::string("[AdamW] moments_dtype is Float or BFloat16, got ") +
                                     c10::toString(mode.moments_dtype) + ".");
  }
  for (const ParamGroup& group : groups) {
    impl_->groups.push_back(group.options);
  }
  impl_->groups.push_back(options);
  for (const AdamWOptions& group : impl_->groups) {
    check_options(group);
    impl_->initial_lrs.push_back(group.lr);
  }
  detail::require_all_sharded(impl_->engine().model);
  if (mode.in_backward) {
    impl_->engine().step.gradients().check_kept("[AdamW] a second optimizer");
    impl_->engine().step.gradients().set_when_summed(
        [impl = impl_.get()](detail::SegmentGradients& g) { impl->update_in_backward(g); });
  }
  impl_->mode = mode;
  for (const detail::SegmentOfUnit& of : impl_->engine().model.segments) {
    if (of.segment->layout().trainable) {
      impl_->add_segment(of, groups);
    }
  }
  if (impl_->segments.empty() && mode.contains) {
    throw Error(ExitCode::Usage,
                "[AdamW] `contains` accepts no trainable parameter: there is nothing to update. It "
                "is asked with qualified names, as plan() lists them.");
  }
  detail::make_room(impl_->segments, impl_->engine().model.offload->copies());
}

void AdamW::Impl::add_segment(const detail::SegmentOfUnit& of,
                              const std::vector<ParamGroup>& param_groups) {
  SegmentMoments state;
  state.of = of;
  for (size_t place = 0; place < of.segment->layout().places.size(); ++place) {
    const detail::UnitParameter& parameter = of.unit->parameter_at(*of.segment, place);
    if (!mode.contains || mode.contains(parameter.name)) {
      const auto group =
          std::find_if(param_groups.begin(), param_groups.end(),
                       [&](const ParamGroup& other) { return other.contains(parameter.name); });
      state.updated.push_back(
          {&parameter, place, static_cast<size_t>(group - param_groups.begin())});
    }
  }
  if (!state.updated.empty()) {
    engine().model.collectives.run(detail::Work::Local, "allocation", of.unit->name(),
                                   [&] { add_moments(state, mode.moments_dtype, engine().model); });
    segments.push_back(std::move(state));
  }
}

AdamW::AdamW(AdamW&&) noexcept = default;
AdamW& AdamW::operator=(AdamW&&) noexcept = default;
AdamW::~AdamW() = default;

// The same on every rank. In backward it is not known yet what other ranks used.
bool AdamW::Impl::is_updated(const SegmentMoments& state, const Updated& updated) const {
  return updated.parameter->tensor.requires_grad() &&  // not frozen since sharding
         (mode.in_backward || state.of.segment->gradients()->used(updated.place));
}

// [Note: Updates during the next forward]
// State on a device's host is updated on a side stream and takes as long as the link needs for the
// state. The update begins after all work queued on the current stream (gradients and their
// scales); in forward a unit is gathered as soon as it is published. The update reads gradient
// shards, which the next backward writes again, when its units have been gathered. Other uses of
// shards wait: FlatSegment::await_update() for their unit, CopyEngine::synchronize() for copies,
// this function for all. If any part is stored on a disk, updates run on the current stream, since
// the host waits for the disk anyway. So do updates of state on the device: they are short and
// limited by memory bandwidth, which concurrent work would share. The same holds in backward, where
// updates are spread anyway and the next unit reuses a gradient shard at once.
void AdamW::Impl::await_update() const {
  if (const detail::CopyEngine* const copies = engine().model.offload->copies()) {
    copies->join();
  }
}

void AdamW::Impl::update(const std::vector<SegmentMoments*>& due) {
  std::vector<Chunk> chunks;
  for (SegmentMoments* state : due) {
    for (Updated& updated : state->updated) {
      if (is_updated(*state, updated)) {
        ++updated.steps;
        if (asked) {
          asked->counted.push_back(&updated);
        }
        add_chunks(chunks, *state, updated);
      }
    }
  }
  detail::CopyEngine* const copies = engine().model.offload->copies();
  const bool on_side_stream = engine().model.offload->updates_on_side_stream() && !mode.in_backward;
  const c10::OptionalStreamGuard guard(on_side_stream ? copies->side_stream() : std::nullopt);
  const double factor = engine().step.gradients().pending_factor().number;
  ChunkQueue queue(std::move(chunks), copies);
  for (SegmentMoments* state : due) {
    engine().model.collectives.run(detail::Work::Local, "update", state->of.unit->name(), [&] {
      while (!queue.empty() && queue.front().state == state) {
        const Updated& updated = *queue.front().updated;
        detail::shard_math::AdamWTensors tensors = queue.bring();
        tensors.grad_scale = grad_scale;
        detail::shard_math::adamw(tensors,
                                  step_numbers(groups[updated.group], updated.steps, factor));
        queue.pop();
      }
    });
    state->of.segment->publish();
  }
}

void AdamW::Impl::update_in_backward(detail::SegmentGradients& gradients) {
  const auto state = std::find_if(
      segments.begin(), segments.end(),
      [&](const SegmentMoments& other) { return other.of.segment->gradients() == &gradients; });
  if (state == segments.end()) {
    gradients.release_shard();  // of parameters that are not updated
    return;
  }
  const int64_t failures = engine().step.failed_backwards();
  if (std::exchange(failures_seen, failures) != failures) {
    updated_in_backward.clear();  // units updated before the failure may be updated again
  }
  if (!updated_in_backward.insert(&gradients).second) {
    throw Error(ExitCode::Usage,
                "[backward] unit '" + state->of.unit->name() +
                    "' has been updated in this step already, and the optimizer works in backward: "
                    "call AdamW::step() after each backward, or build it without in_backward to "
                    "accumulate.");
  }
  detail::begin_update(engine().model, state->of);
  // Ends with the backward: without the units still to come it is half an update.
  engine().step.writing_begins(detail::State::TrainedValues, "an optimizer in backward");
  engine().step.writing_begins(detail::State::Optimizer, "an optimizer in backward");
  update({&*state});
  gradients.release_shard();
}

void AdamW::Impl::check_there_are_gradients() const {
  const bool none = updated_in_backward.empty() &&
                    std::none_of(segments.begin(), segments.end(), [](const auto& state) {
                      return state.of.segment->has_gradient();
                    });
  if (none) {
    throw Error(ExitCode::Usage,
                "[AdamW::step] no parameter has a gradient: call backward() on a loss of this "
                "model after zero_grad() and before each step().");
  }
}

void AdamW::step() {
  impl_->step({});
}

void AdamW::step(const at::Tensor& found_inf) {
  const c10::Device device = impl_->engine().model.mesh.world().device();
  if (found_inf.numel() != 1 || found_inf.device() != device) {
    throw Error(ExitCode::Usage, "[AdamW::step] found_inf is one value on " + device.str() +
                                     ", got " + std::to_string(found_inf.numel()) + " on " +
                                     found_inf.device().str() + ".");
  }
  impl_->engine().step.gradients().check_kept("[AdamW::step] found_inf");
  if (!device.is_cpu()) {
    impl_->step(found_inf);
  } else if (found_inf.item().toDouble() == 0) {
    impl_->step({});
  }
}

// Waits for the device to have decided.
void AdamW::Impl::uncount_what_was_left_out() {
  if (!asked) {
    return;
  }
  at::Tensor found_inf;
  check_exchanges(engine().model, [&] { found_inf = asked->found_inf.wait(); });
  const bool left_out = found_inf.item().toDouble() != 0;
  if (left_out) {
    --steps;
    std::ranges::for_each(asked->counted, [](Updated* updated) { --updated->steps; });
  }
  asked.reset();
}

// Undefined where the host knows all of it.
at::Tensor AdamW::Impl::grad_scale_with(const at::Tensor& found_inf) const {
  const detail::PendingFactor& factor = engine().step.gradients().pending_factor();
  if (!found_inf.defined() && !factor.on_device.defined()) {
    return {};
  }
  return detail::own_work([&] {
    const at::Tensor scale = factor.on(engine().model.mesh.world().device());
    return found_inf.defined()
               ? scale.masked_fill(found_inf.reshape(at::IntArrayRef()).ne(0), kLeaveAll)
               : scale;
  });
}

void AdamW::Impl::step(const at::Tensor& found_inf) {
  const auto range = detail::profiler_range("AdamW::step");
  detail::Engine& on = engine();
  uncount_what_was_left_out();
  check_exchanges(on.model);
  on.step.leave_failed_backward();
  on.step.check_not_torn("AdamW::step");
  on.step.gradients().check_reduced("[AdamW::step]");
  check_there_are_gradients();
  on.model.collectives.set_phase(detail::Phase::Optimizer);
  on.step.reshard_all();
  on.step.gradients().agree_on_use();
  await_update();
  std::vector<SegmentMoments*> due;
  for (SegmentMoments& state : segments) {
    if (state.of.segment->has_gradient()) {
      detail::begin_update(on.model, state.of);  // all of them, before the first is written
      due.push_back(&state);
    }
  }
  const std::vector<int>& order = on.step.schedule().order();
  std::vector<size_t> place_of(on.model.units.size(), order.size());
  for (size_t i = order.size(); i-- > 0;) {
    place_of[static_cast<size_t>(order[i])] = i;
  }
  std::ranges::stable_sort(due, {}, [&place_of](const SegmentMoments* state) {
    return place_of[static_cast<size_t>(state->of.unit->index())];
  });
  grad_scale = grad_scale_with(found_inf);
  if (found_inf.defined()) {
    asked.emplace(Asked{HostCopy(found_inf), {}});
  }
  for (const detail::State state : {detail::State::TrainedValues, detail::State::Optimizer}) {
    on.step.writing_begins(state, "AdamW::step");
  }
  ++steps;
  update(due);
  if (std::ranges::any_of(due, [](const auto* one) { return one->of.segment->is_exposed(); })) {
    await_update();  // callers hold some of what was updated, and know of no stream
  }
  detail::rest(on.model);
  for (const detail::State state : {detail::State::TrainedValues, detail::State::Optimizer}) {
    on.step.writing_ended(state);
  }
  updated_in_backward.clear();
  failures_seen = on.step.failed_backwards();
  on.model.collectives.set_step(steps + 1);
}

// Of the parameters that it updates. Ranks do so alike: what they agreed on holds for the others.
// Of a segment that it updates in part, zeros are written, unlike in any other way to clear.
void AdamW::zero_grad() {
  detail::Step& step = impl_->engine().step;
  if (!impl_->mode.contains) {
    return step.zero_grad();
  }
  step.gradients().changed();
  for (const SegmentMoments& state : impl_->segments) {
    if (state.updated.size() == state.of.segment->layout().places.size()) {
      state.of.segment->gradients()->forget();
      continue;
    }
    state.of.segment->await_update();  // which reads them
    for (const Updated& updated : state.updated) {
      state.of.segment->gradients()->forget(updated.place, updated.begin, updated.numel);
    }
  }
}

void AdamW::set_lr(double lr) {
  check_number("[AdamW] lr", lr);
  for (AdamWOptions& group : impl_->groups) {
    group.lr = lr;
  }
}

AdamWOptions& AdamW::Impl::group(size_t index) {
  if (index >= groups.size()) {
    throw Error(ExitCode::Usage, "[AdamW] there is no group " + std::to_string(index) +
                                     ": groups are counted from 0, and the last, " +
                                     std::to_string(groups.size() - 1) +
                                     ", is for parameters in no other.");
  }
  return groups[index];
}

void AdamW::set_lr(size_t group, double lr) {
  check_number("[AdamW] lr", lr);
  impl_->group(group).lr = lr;
}

double AdamW::lr(size_t group) const {
  return impl_->group(group).lr;
}

void AdamW::scale_lr(double factor) {
  check_number("[AdamW::scale_lr] the factor", factor);
  for (size_t group = 0; group < impl_->groups.size(); ++group) {
    impl_->groups[group].lr = factor * impl_->initial_lrs[group];
  }
}

const AdamWOptions& AdamW::options(size_t group) const {
  return impl_->group(group);
}

size_t AdamW::groups() const {
  return impl_->groups.size();
}

int64_t AdamW::steps_done() const {
  impl_->uncount_what_was_left_out();
  return impl_->steps;
}

void AdamW::set_steps_done(int64_t steps) {
  impl_->asked.reset();
  impl_->steps = steps;
  impl_->updated_in_backward.clear();  // of a step that was not ended
  impl_->engine().model.collectives.set_step(steps + 1);
  for (SegmentMoments& state : impl_->segments) {
    for (Updated& updated : state.updated) {
      updated.steps = steps;
    }
  }
}

Updated& AdamW::Impl::updated(const std::string& parameter) {
  for (SegmentMoments& state : segments) {
    for (Updated& updated : state.updated) {
      if (updated.parameter->name == parameter) {
        return updated;
      }
    }
  }
  throw Error(ExitCode::Usage,
              "[AdamW] '" + parameter + "' is not a trainable parameter of the model" +
                  (mode.contains ? ", or none that this optimizer updates." : "."));
}

int64_t AdamW::steps_done(const std::string& parameter) const {
  impl_->uncount_what_was_left_out();
  return impl_->updated(parameter).steps;
}

void AdamW::set_steps_done(const std::string& parameter, int64_t steps) {
  impl_->uncount_what_was_left_out();
  impl_->updated(parameter).steps = steps;
}

std::vector<MomentShard> AdamW::moments() const {
  std::vector<MomentShard> moments;
  for (const OptimizerShard& shard : state_shards()) {
    const auto shown = [&](const char* kind) {
      return detail::ShardValues(shard.tensors.at(kind)).resting(shard.use).read();
    };
    moments.push_back({shard.parameter, shown("exp_avg"), shown("exp_avg_sq")});
  }
  return moments;
}

std::vector<OptimizerShard> AdamW::state_shards() const {
  impl_->uncount_what_was_left_out();
  std::vector<OptimizerShard> shards;
  for (const SegmentMoments& state : impl_->segments) {
    for (const Updated& updated : state.updated) {
      shards.push_back(
          {updated.parameter->name,
           {{"exp_avg", updated.tensors.exp_avg}, {"exp_avg_sq", updated.tensors.exp_avg_sq}},
           updated.steps,
           state.moments->usable()});
    }
  }
  return shards;
}

std::vector<OptimizerShard> AdamW::shards_to_fill(const OptimizerKinds& kinds) {
  const std::set<std::string> mine = {"exp_avg", "exp_avg_sq"};
  std::vector<OptimizerShard> shards = state_shards();
  for (const OptimizerShard& shard : shards) {
    const auto saved = kinds.find(shard.parameter);
    if (saved == kinds.end() || saved->second.empty()) {
      throw Error(ExitCode::BadData,
                  "it has no optimizer state of parameter '" + shard.parameter +
                      "': it was saved without an optimizer, or with one that left the parameter "
                      "alone. Load it without an optimizer, or with one over the same parameters.");
    }
    if (!std::includes(mine.begin(), mine.end(), saved->second.begin(), saved->second.end())) {
      throw Error(ExitCode::BadData,
                  "its optimizer was not AdamW: of parameter '" + shard.parameter + "' it has '" +
                      *saved->second.rbegin() +
                      "'. Load it with an optimizer of the kind that it was saved with, or without "
                      "one.");
    }
  }
  return shards;
}

void AdamW::restore(int64_t steps_done, const std::vector<OptimizerShard>& shards) {
  set_steps_done(steps_done);
  for (const OptimizerShard& shard : shards) {
    set_steps_done(shard.parameter, shard.steps);
  }
}

}  // namespace sherd
