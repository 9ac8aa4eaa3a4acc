#include <algorithm>
#include <cmath>
#include <utility>

#include "movable_storage.h"
#include "runtime.h"
#include "shard_math.h"
#include "sherd/optim.h"

namespace sherd {

namespace {

// A stretch of this rank's piece that belongs to one parameter, and so to one group.
struct Run {
  int64_t begin = 0;  ///< in the piece
  int64_t numel = 0;
  size_t group = 0;
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
  state.exp_avg = whole(state.exp_avg_buffer);
  state.exp_avg_sq = whole(state.exp_avg_sq_buffer);
}

Run make_run(const SegmentMoments& state, int64_t begin, int64_t numel, size_t group,
             const at::Tensor* parameter) {
  const detail::FlatSegment& segment = *state.segment;
  const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, begin, numel); };
  return {begin,
          numel,
          group,
          parameter,
          {part(segment.master()), part(state.exp_avg), part(state.exp_avg_sq), at::Tensor(),
           segment.has_separate_master() ? part(segment.travelling()) : at::Tensor()}};
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
          .grad_scale = static_cast<float>(grad_scale)};
}

}  // namespace

struct AdamW::Impl {
  ShardedModule model;
  std::vector<AdamWOptions> groups;  ///< the last one is for parameters in no group
  std::vector<SegmentMoments> segments;
  int64_t steps = 0;

  [[nodiscard]] detail::Runtime& runtime() const { return model.runtime(); }
  void update(SegmentMoments& state, const std::vector<kernels::AdamWStep>& numbers);
  void check_there_are_gradients() const;
};

AdamW::AdamW(ShardedModule model, AdamWOptions options, std::vector<ParamGroup> groups)
    : impl_(std::make_unique<Impl>(Impl{std::move(model), {}, {}, 0})) {
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
  detail::Runtime& runtime = impl_->runtime();
  const int rank = runtime.mesh().shard_rank();
  for (const auto& unit : runtime.units()) {
    for (const auto& segment : unit->segments()) {
      const detail::SegmentLayout& layout = segment->layout();
      if (!layout.trainable) {
        continue;
      }
      SegmentMoments state;
      state.unit = unit.get();
      state.segment = segment.get();
      add_moments(state, c10::kFloat, runtime.ledger());
      for (const detail::ParameterPlace& place : layout.places) {
        const detail::Range held = layout.held_by(place, rank);
        const auto& parameter = unit->parameters()[static_cast<size_t>(place.parameter)];
        if (held.size() > 0) {
          state.runs.push_back(make_run(state, layout.start_in_piece(place, rank), held.size(),
                                        group_of(parameter.name), &parameter.tensor));
        }
      }
      impl_->segments.push_back(std::move(state));
    }
  }
}

AdamW::AdamW(AdamW&&) noexcept = default;
AdamW& AdamW::operator=(AdamW&&) noexcept = default;
AdamW::~AdamW() = default;

void AdamW::Impl::update(SegmentMoments& state, const std::vector<kernels::AdamWStep>& numbers) {
  detail::FlatSegment& segment = *state.segment;
  runtime().named("publication", state.unit->name(), [&] { segment.begin_update(); });
  for (const Run& run : state.runs) {
    if (!run.parameter->requires_grad()) {
      continue;  // frozen since sharding
    }
    detail::shard_math::AdamWTensors tensors = run.tensors;
    tensors.gradient = segment.gradient().narrow(0, run.begin, run.numel);
    detail::shard_math::adamw(tensors, numbers[run.group]);
  }
  segment.publish();
}

void AdamW::Impl::check_there_are_gradients() const {
  const bool none = std::none_of(segments.begin(), segments.end(),
                                 [](const auto& state) { return state.segment->has_gradient(); });
  if (none) {
    throw Error(ExitCode::Usage,
                "[AdamW::step] no parameter has a gradient: call backward() on a loss of this "
                "model after zero_grad() and before each step().");
  }
}

void AdamW::step() {
  detail::Runtime& runtime = impl_->runtime();
  runtime.check_gradients_are_reduced("[AdamW::step]");
  impl_->check_there_are_gradients();
  runtime.set_phase(detail::Phase::Optimizer);
  runtime.reshard_all();
  ++impl_->steps;
  std::vector<kernels::AdamWStep> numbers;
  for (const AdamWOptions& group : impl_->groups) {
    numbers.push_back(step_numbers(group, impl_->steps, runtime.pending_gradient_factor()));
  }
  for (SegmentMoments& state : impl_->segments) {
    if (state.segment->has_gradient()) {
      impl_->update(state, numbers);
    }
  }
  runtime.set_step(impl_->steps + 1);
}

void AdamW::zero_grad() {
  impl_->runtime().zero_grad();
}

void AdamW::set_lr(double lr) {
  for (AdamWOptions& group : impl_->groups) {
    group.lr = lr;
  }
}

int64_t AdamW::steps_done() const {
  return impl_->steps;
}

void AdamW::set_steps_done(int64_t steps) {
  impl_->steps = steps;
  impl_->runtime().set_step(steps + 1);
}

std::vector<MomentShard> AdamW::moments() const {
  const int rank = impl_->runtime().mesh().shard_rank();
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
