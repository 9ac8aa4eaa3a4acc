// Factors on all gradients: clipping by the global norm, and GradScaler.

#include <cmath>
#include <string>
#include <utility>

#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include "kernels/shard_math.h"
#include "sherd/optim.h"
#include "step/step.h"
#include "storage/own_work.h"

namespace sherd {

namespace {

// torch.nn.utils.clip_grad_norm_ adds the same 1e-6, so the clipped norm is just below max_norm.
detail::PendingFactor factor_of(const at::Tensor& norm, double max_norm) {
  if (std::isinf(max_norm)) {
    return {};
  }
  if (!norm.is_cpu()) {
    return {.on_device = detail::shard_math::clip_factor_on_device(at::mul(norm, norm), max_norm)};
  }
  const double factor = max_norm / (norm.item<double>() + 1e-6);
  return {.number = std::isfinite(factor) && factor < 1.0 ? factor : 1.0};
}

void check_above_zero(const char* what, double value) {
  if (!(value > 0)) {
    throw Error(ExitCode::Usage, std::string("[clip_grad_norm] ") + what +
                                     " must be above 0, got " + std::to_string(value) + ".");
  }
}

void set_factor(detail::Step& step, detail::PendingFactor factor) {
  step.gradients().set_pending_factor(std::move(factor));
  if (step.masters_handed_out()) {
    step.gradients().apply_pending_factor();  // only the fused optimizer applies it
  }
}

}  // namespace

at::Tensor clip_grad_norm(ShardedModule& model, double max_norm, double norm_type) {
  const auto range = detail::profiler_range("clip_grad_norm");
  check_above_zero("max_norm", max_norm);
  check_above_zero("norm_type", norm_type);
  detail::Engine& engine = detail::engine_of(model);
  engine.step.leave_failed_backward();
  engine.step.gradients().check_kept("[clip_grad_norm]");
  detail::Gradients& gradients = engine.step.gradients();
  gradients.check_reduced("[clip_grad_norm]");
  gradients.apply_pending_factor();
  const bool is_max = std::isinf(norm_type);
  // Σ |x|^p over all gradients, or the largest |x|: double [] on the model's device, equal on every
  // rank.
  at::Tensor powers =
      norm_type == 2.0 ? gradients.sum_of_squares() : gradients.sum_of_powers(norm_type);
  const ReduceOp op = is_max ? ReduceOp::Max : ReduceOp::Sum;
  engine.model.collectives.run(detail::Work::Collective, "all-reduce of the gradient norm", "root",
                               [&] { powers = gradients.agree_on_use_with(powers, op); });
  const at::Tensor norm = detail::own_work([&] {
    return is_max ? powers : norm_type == 2.0 ? at::sqrt(powers) : at::pow(powers, 1.0 / norm_type);
  });
  set_factor(engine.step, detail::own_work([&] { return factor_of(norm, max_norm); }));
  return norm;
}

GradScaler::GradScaler(ShardedModule model, GradScalerOptions options)
    : model_(std::move(model)), options_(options) {
  const bool sensible = options.init_scale > 0 && options.growth_factor > 1 &&
                        options.backoff_factor > 0 && options.backoff_factor < 1 &&
                        options.growth_interval > 0;
  if (!sensible) {
    throw Error(ExitCode::Usage,
                "[GradScaler] init_scale and growth_interval must be above 0, growth_factor above "
                "1, backoff_factor between 0 and 1.");
  }
  const at::TensorOptions on(detail::engine_of(model_).model.mesh.world().device());
  detail::own_work([&] {
    scale_ = at::full({}, options.init_scale, on.dtype(at::kFloat));
    good_steps_ = at::zeros({}, on.dtype(at::kInt));
  });
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return detail::own_work([&] { return at::mul(loss, scale_); });
}

at::Tensor GradScaler::unscale() {
  detail::Engine& engine = detail::engine_of(model_);
  detail::Gradients& gradients = engine.step.gradients();
  engine.step.leave_failed_backward();
  if (found_inf_.defined() && unscaled_version_ == gradients.version()) {
    return found_inf_;
  }
  engine.step.gradients().check_kept("[GradScaler::unscale]");
  gradients.check_reduced("[GradScaler::unscale]");
  const at::Tensor sum = gradients.sum_of_squares();
  const at::Tensor found =
      detail::own_work([&] { return sum.isfinite().logical_not().to(at::kDouble); });
  engine.model.collectives.run(detail::Work::Collective, "all-reduce of overflows", "root", [&] {
    engine.model.communicators->shards->all_reduce_on_device(found.view({1}), ReduceOp::Max);
  });
  found_inf_ = detail::own_work([&] { return found.to(at::kFloat); });
  unscaled_version_ = gradients.version();
  detail::PendingFactor factor = gradients.pending_factor();
  if (scale_.is_cpu()) {
    factor.number /= scale();
  } else {
    factor = {.on_device =
                  detail::own_work([&] { return factor.on(scale_.device()).div(scale_); })};
  }
  set_factor(engine.step, std::move(factor));
  return found_inf_;
}

at::Tensor GradScaler::step(AdamW& optimizer) {
  at::Tensor found_inf = unscale();
  found_inf_.reset();
  optimizer.step(found_inf);
  adapt(found_inf);
  return found_inf;
}

at::Tensor GradScaler::step(torch::optim::Optimizer& optimizer) {
  at::Tensor found_inf = unscale();
  found_inf_.reset();
  if (found_inf.item<float>() == 0) {
    optimizer.step();
  }
  adapt(found_inf);
  return found_inf;
}

void GradScaler::adapt(const at::Tensor& found_inf) {
  detail::own_work([&] {
    at::_amp_update_scale_(scale_, good_steps_, found_inf, options_.growth_factor,
                           options_.backoff_factor, options_.growth_interval);
  });
}

double GradScaler::scale() const {
  return scale_.item<float>();
}

void GradScaler::set_scale(double scale) {
  scale_.fill_(scale);
}

int64_t GradScaler::good_steps() const {
  return good_steps_.item<int32_t>();
}

void GradScaler::set_good_steps(int64_t steps) {
  good_steps_.fill_(steps);
}

}  // namespace sherd
