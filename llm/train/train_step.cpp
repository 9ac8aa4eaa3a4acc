#include "llm/train/train_step.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <fmt/core.h>

#include "llm/model/dropout_keys.h"
#include "llm/setup/batch_tensors.h"
#include "llm/train/first_gradient.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

// Undefined where nothing is dropped.
at::Tensor dropout_keys_of(const inputs::Batch& batch, const StepPlan& plan) {
  return plan.dropout_seed
             ? model::dropout_keys(*plan.dropout_seed, plan.number, batch.numbers, batch.bounds)
             : at::Tensor();
}

// forward() and backward() are seen by LibTorch's profilers under these names.
model::ObjectiveLoss forward(sherd::Sharded<model::CausalLm>& model, const inputs::Batch& batch,
                             const StepPlan& plan) {
  RECORD_USER_SCOPE("forward");
  model::TokenBatch tensors = setup::to_tensors(batch);
  tensors.dropout_keys_T = dropout_keys_of(batch, plan);
  return plan.objective != nullptr ? setup::objective_sum(model, tensors, *plan.objective)
                                   : model::ObjectiveLoss{setup::loss_sum(model, tensors), {}};
}

// `gradient`: of the loss; undefined: 1.
void backward(const at::Tensor& loss, const at::Tensor& gradient) {
  RECORD_USER_SCOPE("backward");
  loss.backward(gradient);
}

at::Tensor gradient_of(const at::Tensor& loss, const StepPlan& plan) {
  return loss.is_cpu() || plan.updated_in_backward ? at::Tensor()
                                                   : first_gradient(loss, plan.left_out);
}

double attended_pairs(const model::DecoderConfig& shape, const inputs::Batch& batch) {
  double pairs = 0;
  for (std::int64_t i = 0; i < batch.documents(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    pairs += shape.seen_pairs(batch.bounds[at + 1] - batch.bounds[at]);
  }
  return pairs;
}

// What all ranks must know before the step: how many tokens it has, and whether it is to be.
StepOutcome count(sherd::Sharded<model::CausalLm>& model,
                  const std::vector<inputs::Batch>& micro_batches, bool stop_here) {
  double totals[] = {0, 0, 0, 0, stop_here ? 1.0 : 0.0};
  for (const inputs::Batch& batch : micro_batches) {
    totals[0] += static_cast<double>(batch.tokens());
    totals[1] += static_cast<double>(batch.supervised_tokens);
    totals[2] += static_cast<double>(batch.samples());
    totals[3] += attended_pairs(model.module()->config(), batch);
  }
  model.world().all_reduce(totals);
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
        fmt::format(
            "{} of step {} is {}. Nothing was updated. The last checkpoint is intact: the same "
            "command resumes from it with a lower optim.lr, with optim.clip_grad_norm, a longer "
            "schedule.warmup or precision.param_dtype = \"float32\"; if the data of this step is "
            "the cause, train.on_non_finite = \"skip\" skips the step.",
            what, step, std::isnan(value) ? std::abs(value) : value));  // no "-nan"
  }
}

// Of every step, before those of an objective (LaunchedStep::figures_).
constexpr std::ptrdiff_t kStepFigures = 4;

// Gradients that overflow although the loss is hardly scaled have another cause.
constexpr double kLeastScale = 1.0 / 1024;

void refuse_hopeless(double scale, std::int64_t step) {
  if (scale < kLeastScale) {
    throw sherd::Error(
        sherd::ExitCode::NonFinite,
        fmt::format("the gradients of step {} are not finite in float16 at any "
                    "scale of the loss. Nothing was updated. The last checkpoint is "
                    "intact: the same command resumes from it with a lower optim.lr, "
                    "or with precision.param_dtype = \"bfloat16\" or \"float32\".",
                    step));
  }
}

}  // namespace

LaunchedStep::LaunchedStep(StepOutcome known, const StepPlan& plan, StepClock clock)
    : outcome_(std::move(known)),
      number_(plan.number),
      objective_(plan.objective),
      skips_non_finite_(plan.skips_non_finite),
      clock_(std::move(clock)) {}

void LaunchedStep::take_finite(const char* what, double value) {
  if (!skips_non_finite_) {
    refuse_non_finite(what, value, number_);
  } else if (!std::isfinite(value)) {
    outcome_.skipped = what;
  }
}

void LaunchedStep::take_loss(double of_all_ranks) {
  outcome_.loss = of_all_ranks;
  take_finite("the loss", of_all_ranks);
}

void LaunchedStep::take_figures(std::span<const double> of_all_ranks) {
  if (objective_ == nullptr) {
    return;
  }
  const std::vector<std::string> names = objective_->figure_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    outcome_.figures[names[i]] = of_all_ranks[i] / static_cast<double>(outcome_.samples);
  }
}

void LaunchedStep::take_norm(double norm) {
  outcome_.grad_norm = norm;
  take_finite("the gradient norm", norm);
}

void LaunchedStep::take_overflow(double scale) {
  outcome_.overflowed = true;
  refuse_hopeless(scale, number_);
}

StepOutcome LaunchedStep::read(sherd::World& world) {
  clock_.wait();
  outcome_.seconds = clock_.seconds();
  outcome_.phase_seconds = clock_.phase_seconds();
  if (!figures_) {
    return outcome_;
  }
  const at::Tensor& all = figures_->wait();
  const auto* const figures = all.const_data_ptr<double>();
  std::vector<double> sums = {figures[0]};
  sums.insert(sums.end(), figures + kStepFigures, figures + all.numel());
  world.all_reduce(sums);
  take_loss(sums[0]);
  take_figures(std::span<const double>(sums).subspan(1));
  if (!outcome_.skipped.empty()) {
    outcome_.grad_norm = std::numeric_limits<double>::quiet_NaN();
  } else if (figures[2] != 0) {
    take_overflow(figures[3]);
  } else if (norm_.defined()) {
    take_norm(figures[1]);
  }
  return outcome_;
}

// Returns this rank's part of the loss, with its gradients computed.
at::Tensor LaunchedStep::run(sherd::Sharded<model::CausalLm>& model,
                             const sherd::GradScaler* scaler,
                             const std::vector<inputs::Batch>& micro_batches,
                             const StepPlan& plan) {
  const auto divisor =
      static_cast<double>(objective_ != nullptr ? outcome_.samples : outcome_.supervised_tokens);
  // Read once: each look at a loss would make the host wait for a GPU.
  const auto wide = at::TensorOptions(at::kDouble).device(model.world().device());
  at::Tensor sum = at::zeros({}, wide);
  if (objective_ != nullptr) {
    objective_figures_ = at::zeros({std::ssize(objective_->figure_names())}, wide);
  }
  for (const inputs::Batch& batch : micro_batches) {
    model.set_is_last_backward(&batch == &micro_batches.back());
    if (plan.graphs != nullptr) {
      sum.add_(plan.graphs->run(batch, outcome_.supervised_tokens, plan.left_out,
                                dropout_keys_of(batch, plan)));
      clock_.mark(Phase::Backward);  // with the forward, which is in the same graph
      continue;
    }
    const model::ObjectiveLoss of_batch = forward(model, batch, plan);
    const at::Tensor loss = of_batch.loss_sum / divisor;
    if (objective_ != nullptr) {
      objective_figures_.add_(of_batch.figures_F);
    }
    clock_.mark(Phase::Forward);
    backward(scaler != nullptr ? scaler->scale(loss) : loss, gradient_of(loss, plan));
    sum.add_(loss.detach());
    clock_.mark(Phase::Backward);
  }
  if (sum.is_cpu()) {
    std::vector<double> sums = {sum.item<double>()};
    if (objective_ != nullptr) {
      const auto* const figures = objective_figures_.const_data_ptr<double>();
      sums.insert(sums.end(), figures, figures + objective_figures_.numel());
    }
    model.world().all_reduce(sums);
    take_loss(sums[0]);
    take_figures(std::span<const double>(sums).subspan(1));
  }
  return sum;
}

void LaunchedStep::clip(sherd::Sharded<model::CausalLm>& model, const StepPlan& plan) {
  norm_ = sherd::clip_grad_norm(
      model, plan.clip_grad_norm.value_or(std::numeric_limits<double>::infinity()));
  if (norm_.is_cpu()) {
    take_norm(norm_.item<double>());
  }
}

// With a scaler a norm that is not finite ends nothing, where some scale may help.
void LaunchedStep::note_left_out(const at::Tensor& loss, const at::Tensor& found_inf,
                                 const sherd::GradScaler* scaler, const StepPlan& plan) {
  left_out_ = (scaler != nullptr ? loss : norm_).isfinite().logical_not();
  if (scaler != nullptr) {
    left_out_.logical_or_(scaler->scale_tensor().lt(kLeastScale).logical_and(found_inf));
  }
  if (plan.left_out.defined()) {
    left_out_.logical_or_(plan.left_out);
  }
}

void LaunchedStep::send_figures(const at::Tensor& loss, const at::Tensor& found_inf,
                                const sherd::GradScaler* scaler) {
  const at::Tensor none = at::zeros_like(loss);
  const at::Tensor of_step = at::stack(
      {loss, norm_.defined() ? norm_ : none, found_inf.defined() ? found_inf.to(at::kDouble) : none,
       scaler != nullptr ? scaler->scale_tensor().to(at::kDouble) : none});
  figures_.emplace(objective_ != nullptr ? at::cat({of_step, objective_figures_}) : of_step);
}

void LaunchedStep::update(sherd::AdamW& optimizer, sherd::GradScaler* scaler) {
  if (!outcome_.skipped.empty()) {  // on a CPU: the host knows at once
    optimizer.step(at::ones({}));
  } else if (scaler != nullptr) {
    scaler->step(optimizer);
  } else if (left_out_.defined()) {
    optimizer.step(left_out_);
  } else {
    optimizer.step();
  }
}

LaunchedStep launch_step(sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer,
                         sherd::GradScaler* scaler, const std::vector<inputs::Batch>& micro_batches,
                         const StepPlan& plan, std::optional<StepClock> clock) {
  LaunchedStep step(count(model, micro_batches, plan.stop_here), plan,
                    clock ? std::move(*clock) : StepClock(model.world().device()));
  StepOutcome& outcome = step.outcome_;
  if (outcome.stop_requested || outcome.supervised_tokens == 0) {
    outcome.loss = std::numeric_limits<double>::quiet_NaN();
    step.clock_.finish();
    return step;
  }
  optimizer.zero_grad();
  const at::Tensor loss = step.run(model, scaler, micro_batches, plan);
  const bool is_skipped = !outcome.skipped.empty();  // never known yet of another device
  const at::Tensor found_inf = scaler != nullptr && !is_skipped ? scaler->unscale() : at::zeros({});
  if (is_skipped) {
    outcome.grad_norm = std::numeric_limits<double>::quiet_NaN();
  } else if (found_inf.is_cpu() && found_inf.item<float>() != 0) {
    step.take_overflow(scaler->scale());
  } else if (!plan.updated_in_backward) {
    step.clip(model, plan);
    if (!loss.is_cpu()) {
      step.note_left_out(loss, found_inf, scaler, plan);
    }
  }
  step.clock_.mark(Phase::Clip);
  if (!loss.is_cpu()) {
    step.send_figures(loss, scaler != nullptr ? found_inf : at::Tensor(), scaler);
  }
  step.update(optimizer, scaler);
  step.clock_.mark(Phase::Optimizer);
  step.clock_.finish();
  return step;
}

StepOutcome train_step(sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer,
                       sherd::GradScaler* scaler, const std::vector<inputs::Batch>& micro_batches,
                       const StepPlan& plan) {
  return launch_step(model, optimizer, scaler, micro_batches, plan).read(model.world());
}

}  // namespace llm::train
