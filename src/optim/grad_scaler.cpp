#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/ops/mul.h>
#include <torch/optim/optimizer.h>

#include "base/own_work.h"
#include "sherd/optim.h"
#include "step/engine.h"

namespace sherd {

namespace {

bool is_finite(const std::vector<double>& sums) {
  return std::all_of(sums.begin(), sums.end(), [](double sum) { return std::isfinite(sum); });
}

}  // namespace

GradScaler::GradScaler(ShardedModule model, GradScalerOptions options)
    : model_(std::move(model)), options_(options), scale_(options.init_scale) {
  const bool sensible = options.init_scale > 0 && options.growth_factor > 1 &&
                        options.backoff_factor > 0 && options.backoff_factor < 1 &&
                        options.growth_interval > 0;
  if (!sensible) {
    throw Error(ExitCode::Usage,
                "[GradScaler] init_scale and growth_interval must be above 0, growth_factor above "
                "1, backoff_factor between 0 and 1.");
  }
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return detail::own_work([&] { return at::mul(loss, scale_); });
}

bool GradScaler::unscale() {
  detail::Engine& engine = detail::engine_of(model_);
  engine.step.leave_failed_backward();
  if (finite_ && unscaled_version_ == engine.step.gradients().version()) {
    return *finite_;
  }
  engine.step.reductions().check_gradients_are_kept("[GradScaler::unscale]");
  engine.step.gradients().check_reduced("[GradScaler::unscale]");
  double overflows = is_finite(engine.step.gradients().sums_of_squares()) ? 0.0 : 1.0;
  engine.model.collectives.run("all-reduce of overflows", "root", [&] {
    engine.model.communicators->shards().all_reduce({&overflows, 1}, ReduceOp::Max);
  });
  finite_ = overflows == 0.0;
  unscaled_version_ = engine.step.gradients().version();
  engine.step.gradients().set_pending_factor(engine.step.gradients().pending_factor() / scale_);
  if (engine.step.masters_handed_out()) {
    engine.step.gradients().apply_pending_factor();  // only the fused optimizer applies it
  }
  return *finite_;
}

bool GradScaler::step(AdamW& optimizer) {
  return step_with([&] { optimizer.step(); });
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  return step_with([&] { optimizer.step(); });
}

bool GradScaler::step_with(const std::function<void()>& update) {
  const bool finite = unscale();
  finite_.reset();
  if (!finite) {
    model_.zero_grad();
    scale_ *= options_.backoff_factor;
    good_steps_ = 0;
    return false;
  }
  update();
  if (++good_steps_ == options_.growth_interval) {
    scale_ *= options_.growth_factor;
    good_steps_ = 0;
  }
  return true;
}

}  // namespace sherd
