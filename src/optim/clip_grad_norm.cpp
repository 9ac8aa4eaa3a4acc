#include <cmath>
#include <string>

#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>

#include "kernels/shard_math.h"
#include "sherd/optim.h"
#include "step/step.h"
#include "storage/own_work.h"
#include "storage/profiler_range.h"

namespace sherd {

namespace {

// Σ |x|^p over all gradients, or the largest |x|: double [] on the model's device, equal on every
// rank.
at::Tensor global_powers(detail::Engine& engine, double p) {
  const ReduceOp op = std::isinf(p) ? ReduceOp::Max : ReduceOp::Sum;
  detail::Gradients& gradients = engine.step.gradients();
  at::Tensor powers = p == 2.0 ? gradients.sum_of_squares() : gradients.sum_of_powers(p);
  engine.model.collectives.run(detail::Work::Collective, "all-reduce of the gradient norm", "root",
                               [&] { powers = gradients.agree_on_use_with(powers, op); });
  return powers;
}

at::Tensor norm_of(const at::Tensor& powers, double p) {
  return std::isinf(p) ? powers : p == 2.0 ? at::sqrt(powers) : at::pow(powers, 1.0 / p);
}

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

}  // namespace

at::Tensor clip_grad_norm(ShardedModule& model, double max_norm, double norm_type) {
  const detail::ProfilerRange range("clip_grad_norm");
  check_above_zero("max_norm", max_norm);
  check_above_zero("norm_type", norm_type);
  detail::Engine& engine = detail::engine_of(model);
  engine.step.leave_failed_backward();
  engine.step.reductions().check_gradients_are_kept("[clip_grad_norm]");
  engine.step.gradients().check_reduced("[clip_grad_norm]");
  engine.step.gradients().apply_pending_factor();
  const at::Tensor powers = global_powers(engine, norm_type);
  const at::Tensor norm = detail::own_work([&] { return norm_of(powers, norm_type); });
  engine.step.gradients().set_pending_factor(
      detail::own_work([&] { return factor_of(norm, max_norm); }));
  if (engine.step.masters_handed_out()) {
    engine.step.gradients().apply_pending_factor();  // only the fused optimizer applies it
  }
  return norm;
}

}  // namespace sherd
