#include <cmath>
#include <string>

#include "communicators/reduce_buffers.h"
#include "profiler_range.h"
#include "runtime.h"
#include "shard_math.h"
#include "sherd/optim.h"

namespace sherd {

namespace {

double sum_of_powers(const detail::SegmentGradients& gradients, double p) {
  return p == 2.0 ? gradients.sum_of_squares()
                  : detail::shard_math::sum_of_powers(gradients.shard(), p);
}

// Of all gradients, the same number on every rank.
double global_norm(detail::Runtime& runtime, double norm_type) {
  const bool largest = std::isinf(norm_type);
  const ReduceOp op = largest ? ReduceOp::Max : ReduceOp::Sum;
  double powers = 0;
  for (const auto& unit : runtime.units()) {
    for (const auto& segment : unit->segments()) {
      if (segment->has_gradient()) {
        powers = detail::join(powers, sum_of_powers(*segment->gradients(), norm_type), op);
      }
    }
  }
  runtime.collective("all-reduce of the gradient norm", "root", [&] {
    runtime.communicator().all_reduce({&powers, 1}, op);
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
  detail::Runtime& runtime = model.runtime();
  runtime.check_gradients_are_kept("[clip_grad_norm]");
  runtime.check_gradients_are_reduced("[clip_grad_norm]");
  runtime.apply_gradient_factor();
  const double norm = global_norm(runtime, norm_type);
  // torch.nn.utils.clip_grad_norm_ adds the same 1e-6, and so clips to a hair below max_norm.
  const double factor = max_norm / (norm + 1e-6);
  runtime.set_pending_gradient_factor(std::isfinite(factor) && factor < 1.0 ? factor : 1.0);
  if (runtime.optim_views().handed_out()) {
    runtime.apply_gradient_factor();  // no optimizer but the fused one knows of it
  }
  return norm;
}

}  // namespace sherd
