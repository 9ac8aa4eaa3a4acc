#include "llm/train/train_step.h"

#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <fmt/core.h>

#include "llm/eval/batch_tensors.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

// forward() and backward() are seen by LibTorch's profilers under these names.
at::Tensor forward(sherd::Sharded<model::CausalLm>& model, const data::Batch& batch) {
  RECORD_USER_SCOPE("forward");
  return eval::loss_sum(model, eval::to_tensors(batch));
}

void backward(const at::Tensor& loss) {
  RECORD_USER_SCOPE("backward");
  loss.backward();
}

std::int64_t attended_pairs(const data::Batch& batch) {
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < batch.samples(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t length = batch.bounds[at + 1] - batch.bounds[at];
    pairs += length * (length + 1) / 2;
  }
  return pairs;
}

// What all ranks must know before the step: how many tokens it has, and whether it is to be.
StepOutcome count(sherd::World& world, const std::vector<data::Batch>& micro_batches,
                  bool stop_here) {
  double totals[] = {0, 0, 0, 0, stop_here ? 1.0 : 0.0};
  for (const data::Batch& batch : micro_batches) {
    totals[0] += static_cast<double>(batch.tokens());
    totals[1] += static_cast<double>(batch.supervised_tokens);
    totals[2] += static_cast<double>(batch.samples());
    totals[3] += static_cast<double>(attended_pairs(batch));
  }
  world.all_reduce(totals);
  StepOutcome outcome;
  outcome.tokens = static_cast<std::int64_t>(totals[0]);
  outcome.supervised_tokens = static_cast<std::int64_t>(totals[1]);
  outcome.samples = static_cast<std::int64_t>(totals[2]);
  outcome.attended_pairs = static_cast<std::int64_t>(totals[3]);
  outcome.stop_requested = totals[4] > 0;
  return outcome;
}

void refuse_non_finite(const char* what, double value, std::int64_t step) {
  if (!std::isfinite(value)) {
    throw sherd::Error(
        sherd::ExitCode::NonFinite,
        fmt::format("{} of step {} is {}. Nothing was updated. Lower optim.lr, raise "
                    "schedule.warmup, or look at the data of this step; the last checkpoint is "
                    "intact.",
                    what, step, value));
  }
}

// Gradients that overflow although the loss is hardly scaled have another cause.
void refuse_hopeless(const sherd::GradScaler& scaler, std::int64_t step) {
  constexpr double kLeastScale = 1.0 / 1024;
  if (scaler.scale() < kLeastScale) {
    throw sherd::Error(sherd::ExitCode::NonFinite,
                       fmt::format("the gradients of step {} are not finite in float16 at any "
                                   "scale of the loss. Nothing was updated. Lower optim.lr, or set "
                                   "precision.param_dtype to bfloat16 or float32; the last "
                                   "checkpoint is intact.",
                                   step));
  }
}

}  // namespace

StepOutcome train_step(sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer,
                       sherd::GradScaler* scaler, const std::vector<data::Batch>& micro_batches,
                       const StepPlan& plan) {
  StepOutcome outcome = count(model.world(), micro_batches, plan.stop_here);
  if (outcome.stop_requested || outcome.supervised_tokens == 0) {
    return outcome;
  }
  const auto supervised = static_cast<double>(outcome.supervised_tokens);
  optimizer.zero_grad();
  // Read once: each look at a loss would make the host wait for a GPU.
  at::Tensor sum = at::zeros({}, at::TensorOptions(at::kDouble).device(model.world().device()));
  for (const data::Batch& batch : micro_batches) {
    const at::Tensor loss = forward(model, batch) / supervised;
    backward(scaler != nullptr ? scaler->scale(loss) : loss);
    sum.add_(loss.detach());
  }
  outcome.loss = sum.item<double>();
  model.world().all_reduce({&outcome.loss, 1});
  refuse_non_finite("the loss", outcome.loss, plan.number);
  outcome.overflowed = scaler != nullptr && !scaler->unscale();
  if (outcome.overflowed) {
    refuse_hopeless(*scaler, plan.number);
  } else if (!plan.updated_in_backward) {
    outcome.grad_norm = sherd::clip_grad_norm(
        model, plan.clip_grad_norm.value_or(std::numeric_limits<double>::infinity()));
    refuse_non_finite("the gradient norm", outcome.grad_norm, plan.number);
  }
  if (scaler != nullptr) {
    scaler->step(optimizer);
  } else {
    optimizer.step();
  }
  return outcome;
}

}  // namespace llm::train
