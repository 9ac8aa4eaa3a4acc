#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "movable_storage.h"
#include "profiler_range.h"
#include "shard_math.h"
#include "sherd/optim.h"
#include "step/engine.h"

namespace sherd {

namespace {

// A stretch of this rank's piece that belongs to one parameter, and so to one group.
struct Run {
  int64_t begin = 0;  ///< in the piece
  int64_t numel = 0;
  size_t group = 0;
  size_t place = 0;  ///< of the parameter in the segment
  const at::Tensor* parameter = nullptr;
  detail::shard_math::AdamWTensors tensors;  ///< without the gradient
};

struct SegmentMoments {
  detail::UnitState* unit = nullptr;
  detail::FlatSegment* segment = nullptr;
  Buffer exp_avg_buffer;
  Buffer exp_avg_sq_buffer;
  at::Tensor exp_avg;  ///< [shard_numel]
  at::Tensor exp_avg_sq;
  std::vector<int64_t> steps;  ///< updates that each parameter has had, by place
  std::vector<Run> runs;
};

void add_moments(SegmentMoments& state, c10::ScalarType dtype,
                 const std::shared_ptr<MemoryLedger>& ledger) {
  const detail::SegmentLayout& layout = state.segment->layout();
  const int64_t bytes = layout.shard_numel * static_cast<int64_t>(c10::elementSize(dtype));
  state.exp_avg_buffer = Buffer(bytes, MemoryKind::OptimizerState, ledger, layout.device);
  state.exp_avg_sq_buffer = Buffer(bytes, MemoryKind::OptimizerState, ledger, layout.device);
  const auto whole = [&](const Buffer& buffer) {
    return detail::flat_tensor(buffer.data(), layout.shard_numel, dtype, layout.device);
  };
  state.steps.assign(layout.places.size(), 0);
  state.exp_avg = whole(state.exp_avg_buffer);
  state.exp_avg_sq = whole(state.exp_avg_sq_buffer);
}

Run make_run(const SegmentMoments& state, int64_t begin, detail::Range held, size_t group,
             size_t place, const at::Tensor* parameter) {
  const int64_t numel = held.size();
  const detail::FlatSegment& segment = *state.segment;
  const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, begin, numel); };
  return {begin,
          numel,
          group,
          place,
          parameter,
          {part(segment.master()), part(state.exp_avg), part(state.exp_avg_sq), at::Tensor(),
           segment.has_separate_master() ? part(segment.travelling()) : at::Tensor(), held.begin}};
}

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

void check_lr(double lr) {
  if (!(lr >= 0) || !std::isfinite(lr)) {
    throw Error(ExitCode::Usage,
                "[AdamW] lr must be a number of at least 0, got " + std::to_string(lr) + ".");
  }
}

void check_options(const AdamWOptions& options) {
  check_lr(options.lr);
  for (const double beta : {options.betas.first, options.betas.second}) {
    if (!(beta >= 0 && beta < 1)) {
      throw Error(ExitCode::Usage, "[AdamW] betas must be at least 0 and below 1, got " +
                                       std::to_string(beta) + ".");
    }
  }
  if (!(options.eps >= 0) || !std::isfinite(options.eps)) {
    throw Error(ExitCode::Usage, "[AdamW] eps must be a number of at least 0, got " +
                                     std::to_string(options.eps) + ".");
  }
  if (!(options.weight_decay >= 0) || !std::isfinite(options.weight_decay)) {
    throw Error(ExitCode::Usage, "[AdamW] weight_decay must be a number of at least 0, got " +
                                     std::to_string(options.weight_decay) + ".");
  }
}

}  // namespace

struct AdamW::Impl {
  explicit Impl(ShardedModule sharded) : model(std::move(sharded)) {}
  ~Impl() {
    if (mode.in_backward) {
      engine().step.reductions().set_when_summed({});
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ShardedModule model;
  AdamWMode mode;
  std::vector<AdamWOptions> groups;  ///< the last one is for parameters in no group
  std::vector<SegmentMoments> segments;
  int64_t steps = 0;
  std::set<const detail::SegmentGradients*> updated_in_backward;
  int64_t failures_seen = 0;  ///< of backwards, by updated_in_backward

  [[nodiscard]] detail::Engine& engine() const { return model.engine(); }
  [[nodiscard]] bool is_updated(const SegmentMoments& state, size_t place) const;
  void update(SegmentMoments& state);
  void update_in_backward(detail::SegmentGradients& gradients);
  void forget_failed_backward();
  void check_there_are_gradients() const;
  [[nodiscard]] AdamWOptions& group(size_t index);
  [[nodiscard]] int64_t& steps_of(const std::string& parameter);
};

AdamW::AdamW(ShardedModule model, AdamWOptions options, std::vector<ParamGroup> groups,
             AdamWMode mode)
    : impl_(std::make_unique<Impl>(std::move(model))) {
  if (mode.moments_dtype != c10::kFloat && mode.moments_dtype != c10::kBFloat16) {
    throw Error(ExitCode::Usage, std::string("[AdamW] moments_dtype is Float or BFloat16, got ") +
                                     c10::toString(mode.moments_dtype) + ".");
  }
  check_options(options);
  for (const ParamGroup& group : groups) {
    check_options(group.options);
  }
  if (mode.in_backward) {
    impl_->engine().step.reductions().check_gradients_are_kept("[AdamW] a second optimizer");
    impl_->engine().step.reductions().set_when_summed(
        [impl = impl_.get()](detail::SegmentGradients& g) { impl->update_in_backward(g); });
  }
  impl_->mode = mode;
  for (const ParamGroup& group : groups) {
    impl_->groups.push_back(group.options);
  }
  impl_->groups.push_back(options);
  const auto group_of = [&](const std::string& name) {
    size_t index = 0;
    while (index < groups.size() && !groups[index].contains(name)) {
      ++index;
    }
    return index;
  };
  detail::Engine& engine = impl_->engine();
  const int rank = engine.model.mesh.shard_rank();
  for (const auto& unit : engine.model.units) {
    for (const auto& segment : unit->segments()) {
      const detail::SegmentLayout& layout = segment->layout();
      if (!layout.trainable) {
        continue;
      }
      SegmentMoments state;
      state.unit = unit.get();
      state.segment = segment.get();
      add_moments(state, mode.moments_dtype, engine.model.ledger);
      for (size_t index = 0; index < layout.places.size(); ++index) {
        const detail::ParameterPlace& place = layout.places[index];
        const detail::Range held = layout.held_by(place, rank);
        const auto& parameter = unit->parameters()[static_cast<size_t>(place.parameter)];
        if (held.size() > 0) {
          state.runs.push_back(make_run(state, layout.start_in_piece(place, rank), held,
                                        group_of(parameter.name), index, &parameter.tensor));
        }
      }
      impl_->segments.push_back(std::move(state));
    }
  }
}

AdamW::AdamW(AdamW&&) noexcept = default;
AdamW& AdamW::operator=(AdamW&&) noexcept = default;
AdamW::~AdamW() = default;

// The same on every rank. In backward nobody knows yet what other ranks used.
bool AdamW::Impl::is_updated(const SegmentMoments& state, size_t place) const {
  const auto parameter = static_cast<size_t>(state.segment->layout().places[place].parameter);
  return state.unit->parameters()[parameter].tensor.requires_grad() &&  // not frozen since sharding
         (mode.in_backward || state.segment->gradients()->used(place));
}

void AdamW::Impl::update(SegmentMoments& state) {
  detail::FlatSegment& segment = *state.segment;
  engine().model.collectives.run("publication", state.unit->name(),
                                 [&] { segment.begin_update(); });
  for (size_t place = 0; place < state.steps.size(); ++place) {
    state.steps[place] += is_updated(state, place) ? 1 : 0;
  }
  for (const Run& run : state.runs) {
    if (!is_updated(state, run.place)) {
      continue;
    }
    detail::shard_math::AdamWTensors tensors = run.tensors;
    tensors.gradient = segment.gradient().narrow(0, run.begin, run.numel);
    detail::shard_math::adamw(tensors, step_numbers(groups[run.group], state.steps[run.place],
                                                    engine().step.gradients().pending_factor()));
  }
  segment.publish();
}

// What it has updated stays so, and may be updated again.
void AdamW::Impl::forget_failed_backward() {
  if (failures_seen != engine().step.failed_backwards()) {
    failures_seen = engine().step.failed_backwards();
    updated_in_backward.clear();
  }
}

void AdamW::Impl::update_in_backward(detail::SegmentGradients& gradients) {
  const auto state = std::find_if(
      segments.begin(), segments.end(),
      [&](const SegmentMoments& other) { return other.segment->gradients() == &gradients; });
  forget_failed_backward();
  if (!updated_in_backward.insert(&gradients).second) {
    throw Error(ExitCode::Usage,
                "[backward] unit '" + state->unit->name() +
                    "' has been updated in this step already, and the optimizer works in backward: "
                    "call AdamW::step() after each backward, or build it without in_backward to "
                    "accumulate.");
  }
  update(*state);
  gradients.release_shard();
}

void AdamW::Impl::check_there_are_gradients() const {
  const bool none = updated_in_backward.empty() &&
                    std::none_of(segments.begin(), segments.end(),
                                 [](const auto& state) { return state.segment->has_gradient(); });
  if (none) {
    throw Error(ExitCode::Usage,
                "[AdamW::step] no parameter has a gradient: call backward() on a loss of this "
                "model after zero_grad() and before each step().");
  }
}

void AdamW::step() {
  const detail::ProfilerRange range("AdamW::step");
  detail::Engine& engine = impl_->engine();
  engine.step.leave_failed_backward();
  engine.step.gradients().check_reduced("[AdamW::step]");
  impl_->check_there_are_gradients();
  engine.model.collectives.set_phase(detail::Phase::Optimizer);
  engine.step.reshard_all();
  engine.step.gradients().used_parameters().agree();
  ++impl_->steps;
  for (SegmentMoments& state : impl_->segments) {
    if (state.segment->has_gradient()) {
      impl_->update(state);
    }
  }
  impl_->updated_in_backward.clear();
  impl_->failures_seen = engine.step.failed_backwards();
  engine.model.collectives.set_step(impl_->steps + 1);
}

void AdamW::zero_grad() {
  impl_->engine().step.zero_grad();
}

void AdamW::set_lr(double lr) {
  check_lr(lr);
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
  check_lr(lr);
  impl_->group(group).lr = lr;
}

double AdamW::lr(size_t group) const {
  return impl_->group(group).lr;
}

int64_t AdamW::steps_done() const {
  return impl_->steps;
}

void AdamW::set_steps_done(int64_t steps) {
  impl_->steps = steps;
  impl_->engine().model.collectives.set_step(steps + 1);
  for (SegmentMoments& state : impl_->segments) {
    state.steps.assign(state.steps.size(), steps);
  }
}

int64_t& AdamW::Impl::steps_of(const std::string& parameter) {
  for (SegmentMoments& state : segments) {
    const auto& places = state.segment->layout().places;
    for (size_t place = 0; place < places.size(); ++place) {
      const auto index = static_cast<size_t>(places[place].parameter);
      if (state.unit->parameters()[index].name == parameter) {
        return state.steps[place];
      }
    }
  }
  throw Error(ExitCode::Usage,
              "[AdamW] '" + parameter + "' is no trainable parameter of the model.");
}

int64_t AdamW::steps_done(const std::string& parameter) const {
  return impl_->steps_of(parameter);
}

void AdamW::set_steps_done(const std::string& parameter, int64_t steps) {
  impl_->steps_of(parameter) = steps;
}

std::vector<MomentShard> AdamW::moments() const {
  const int rank = impl_->engine().model.mesh.shard_rank();
  std::vector<MomentShard> moments;
  for (const SegmentMoments& state : impl_->segments) {
    const detail::SegmentLayout& layout = state.segment->layout();
    for (const detail::ParameterPlace& place : layout.places) {
      const int64_t start = layout.start_in_piece(place, rank);
      const int64_t numel = layout.held_by(place, rank).size();
      const auto& parameter = state.unit->parameters()[static_cast<size_t>(place.parameter)];
      moments.push_back({parameter.name, state.exp_avg.narrow(0, start, numel),
                         state.exp_avg_sq.narrow(0, start, numel)});
    }
  }
  return moments;
}

}  // namespace sherd
