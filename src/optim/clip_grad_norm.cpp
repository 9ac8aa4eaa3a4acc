#include <cmath>

#include "runtime.h"
#include "shard_math.h"
#include "sherd/optim.h"

namespace sherd {

double clip_grad_norm(ShardedModule& model, double max_norm) {
  if (!(max_norm > 0)) {
    throw Error(ExitCode::Usage,
                "[clip_grad_norm] max_norm must be above 0, got " + std::to_string(max_norm) + ".");
  }
  detail::Runtime& runtime = model.runtime();
  runtime.check_gradients_are_kept("[clip_grad_norm]");
  runtime.check_gradients_are_reduced("[clip_grad_norm]");
  runtime.apply_gradient_factor();
  double squares = 0;
  for (const auto& unit : runtime.units()) {
    for (const auto& segment : unit->segments()) {
      if (segment->has_gradient()) {
        squares += detail::shard_math::sum_of_squares(segment->gradient());
      }
    }
  }
  runtime.collective("all-reduce of the gradient norm", "root", [&] {
    runtime.communicator().all_reduce({&squares, 1}, ReduceOp::Sum);
  });
  const double norm = std::sqrt(squares);
  // torch.nn.utils.clip_grad_norm_ adds the same 1e-6, and so clips to a hair below max_norm.
  const double factor = max_norm / (norm + 1e-6);
  runtime.set_pending_gradient_factor(std::isfinite(factor) && factor < 1.0 ? factor : 1.0);
  if (runtime.optim_views().handed_out()) {
    runtime.apply_gradient_factor();  // no optimizer but the fused one knows of it
  }
  return norm;
}

}  // namespace sherd
