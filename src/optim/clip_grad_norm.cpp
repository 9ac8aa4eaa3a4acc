#include <cmath>
#include <string>
#include <vector>

#include "base/profiler_range.h"
#include "communicators/reduce_buffers.h"
#include "kernels/shard_math.h"
#include "sherd/optim.h"
#include "step/engine.h"

namespace sherd {

namespace {

// Of each segment that has a gradient: Σ |x|^p, or max |x|.
std::vector<double> sums_of_powers(detail::Engine& engine, double p) {
  if (p == 2.0) {
    return engine.step.gradients().sums_of_squares();
  }
  std::vector<double> sums;
  for (const detail::SegmentOfUnit& of : engine.model.segments) {
    if (of.segment->has_gradient()) {
      sums.push_back(engine.model.collectives.locally("gradient norm", of.unit->name(), [&] {
        return detail::shard_math::sum_of_powers(of.segment->gradients()->shard(), p);
      }));
    }
  }
  return sums;
}

// Norm of all gradients, equal on every rank.
double global_norm(detail::Engine& engine, double norm_type) {
  const bool largest = std::isinf(norm_type);
  const ReduceOp op = largest ? ReduceOp::Max : ReduceOp::Sum;
  double powers = 0;
  for (const double more : sums_of_powers(engine, norm_type)) {
    powers = detail::join(powers, more, op);
  }
  engine.model.collectives.run("all-reduce of the gradient norm", "root", [&] {
    powers = engine.step.gradients().used_parameters().agree_beside(powers, op);
  });
  if (norm_type == 2.0) {
    return std::sqrt(powers);
  }
  return largest ? powers : std::pow(powers, 1.0 / norm_type);
}

void check_above_zero(const char* what, double value) {
  if (!(value > 0)) {
    throw Error(ExitCode::Usage, std::string("[clip_grad_norm] ") + what +
                                     " must be above 0, got " + std::to_string(value) + ".");
  }
}

}  // namespace

double clip_grad_norm(ShardedModule& model, double max_norm, double norm_type) {
  const detail::ProfilerRange range("clip_grad_norm");
  check_above_zero("max_norm", max_norm);
  check_above_zero("norm_type", norm_type);
  detail::Engine& engine = detail::engine_of(model);
  engine.step.leave_failed_backward();
  engine.step.reductions().check_gradients_are_kept("[clip_grad_norm]");
  engine.step.gradients().check_reduced("[clip_grad_norm]");
  engine.step.gradients().apply_pending_factor();
  const double norm = global_norm(engine, norm_type);
  // torch.nn.utils.clip_grad_norm_ adds the same 1e-6, so the clipped norm is just below max_norm.
  const double factor = max_norm / (norm + 1e-6);
  engine.step.gradients().set_pending_factor(std::isfinite(factor) && factor < 1.0 ? factor : 1.0);
  if (engine.step.masters_handed_out()) {
    engine.step.gradients().apply_pending_factor();  // only the fused optimizer applies it
  }
  return norm;
}

}  // namespace sherd
