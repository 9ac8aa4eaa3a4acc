#include <cmath>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "kernels/kernels.h"
#include "runtime.h"
#include "sherd/optim.h"

namespace sherd {

namespace {

// A stretch of this rank's piece that belongs to one parameter, and so to one group.
struct Run {
  int64_t begin = 0;  ///< in the piece
  int64_t numel = 0;
  size_t group = 0;
  const at::Tensor* parameter = nullptr;
};

struct SegmentMoments {
  detail::UnitState* unit = nullptr;
  detail::FlatSegment* segment = nullptr;
  Buffer exp_avg;
  Buffer exp_avg_sq;
  std::vector<Run> runs;
};

float* floats(const Buffer& buffer) {
  return static_cast<float*>(buffer.data());
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
  const int rank = runtime.mesh().world().rank();
  for (const auto& unit : runtime.units()) {
    for (const auto& segment : unit->segments()) {
      const detail::SegmentLayout& layout = segment->layout();
      if (!layout.trainable) {
        continue;
      }
      const int64_t bytes = layout.shard_numel * static_cast<int64_t>(sizeof(float));
      SegmentMoments state{unit.get(),
                           segment.get(),
                           Buffer(bytes, MemoryKind::OptimizerState, runtime.ledger()),
                           Buffer(bytes, MemoryKind::OptimizerState, runtime.ledger()),
                           {}};
      for (const detail::ParameterPlace& place : layout.places) {
        const detail::Range held = layout.held_by(place, rank);
        const auto& parameter = unit->parameters()[static_cast<size_t>(place.parameter)];
        if (held.size() > 0) {
          state.runs.push_back({place.offset + held.begin - rank * layout.shard_numel, held.size(),
                                group_of(parameter.name), &parameter.tensor});
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
  Communicator& communicator = runtime().communicator();
  detail::FlatSegment& segment = *state.segment;
  runtime().named("publication", state.unit->name(),
                  [&] { communicator.begin_update(segment.id()); });
  auto* travelling = segment.has_separate_master()
                         ? static_cast<uint16_t*>(segment.travelling().mutable_data_ptr())
                         : nullptr;
  auto* master = segment.master().mutable_data_ptr<float>();
  const auto* gradient = segment.gradient().const_data_ptr<float>();
  for (const Run& run : state.runs) {
    if (!run.parameter->requires_grad()) {
      continue;  // frozen since sharding
    }
    kernels::adamw(master + run.begin, floats(state.exp_avg) + run.begin,
                   floats(state.exp_avg_sq) + run.begin, gradient + run.begin,
                   travelling == nullptr ? nullptr : travelling + run.begin, run.numel,
                   numbers[run.group]);
  }
  communicator.publish(segment.id());
}

void AdamW::step() {
  detail::Runtime& runtime = impl_->runtime();
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
  const int rank = impl_->runtime().mesh().world().rank();
  std::vector<MomentShard> moments;
  for (const SegmentMoments& state : impl_->segments) {
    const detail::SegmentLayout& layout = state.segment->layout();
    for (const detail::ParameterPlace& place : layout.places) {
      const detail::Range held = layout.held_by(place, rank);
      const int64_t start =
          held.size() == 0 ? 0 : place.offset + held.begin - rank * layout.shard_numel;
      const auto& parameter = state.unit->parameters()[static_cast<size_t>(place.parameter)];
      moments.push_back(
          {parameter.name, at::from_blob(floats(state.exp_avg) + start, {held.size()}, at::kFloat),
           at::from_blob(floats(state.exp_avg_sq) + start, {held.size()}, at::kFloat)});
    }
  }
  return moments;
}

}  // namespace sherd
