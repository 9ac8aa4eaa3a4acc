#include "llm/train/training_loop.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "llm/eval/prediction_files.h"
#include "llm/model/dropout_keys.h"
#include "llm/plan/rates.h"
#include "llm/plan/run_plan.h"
#include "llm/setup/device.h"
#include "llm/setup/options_of_config.h"
#include "llm/setup/peak_memory.h"
#include "llm/text/printable.h"
#include "llm/train/output_folder.h"
#include "llm/train/schedule.h"
#include "llm/train/step_profile.h"
#include "ops/attention_kernel.h"
#include "ops/plain_use.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inputs::Loader loader_of(const Run& run) {
  const inputs::RunData& data = run.inputs.data;
  const auto seed = static_cast<std::uint64_t>(run.config().train.seed);
  const inputs::Sampler sampler(data.length.rows, run.config().train.global_batch, seed);
  return {data.training, data.rows, sampler, run.inputs.shape, run.world.rank()};
}

StepTrace trace_of(const Run& run) {
  const config::RunConfig& config = run.config();
  const plan::Device device = plan::hosts_of(run.world).device;
  return {config.log.trace_steps, std::filesystem::path(config.train.output) / "traces",
          run.world.rank(), run.world.device(),
          plan::limits_of(device, setup::dtype_of(config.precision.param_dtype),
                          plan::readable_gpu_rates(device.name))};
}

Beginning beginning_of(const Run& run) {
  const plan::PlannedHosts hosts = plan::hosts_of(run.world);
  return {.step = run.start.step,
          .ranks = run.world.size(),
          .hosts = hosts.hosts,
          .threads = hosts.threads,
          .transport = run.world.transport(),
          .isa = setup::path_of(run.world),
          .data_sha256 = run.inputs.data.identity.sha256,
          .peak_operations_per_second =
              run.mfu.peak ? std::optional(run.mfu.peak->operations_per_second) : std::nullopt};
}

// What evaluations after the start have left is of steps that come again.
std::int64_t last_step_kept(const Run& run) {
  return run.start.step > 0 ? run.start.step : -1;
}

}  // namespace

TrainingLoop::TrainingLoop(Run& run)
    : run_(run),
      length_(run.inputs.data.length),
      loader_(loader_of(run)),
      evaluations_(run),
      saves_(run, evaluations_),
      trace_(trace_of(run)),
      started_(Clock::now()) {
  run_.outcome.steps_done = run_.start.step;
  run_.outcome.checkpoint = run_.start.folder;
  run_.hooks.status->set_saved(run_.start.step);
  run_.hooks.status->set_done(run_.start.step);
  if (run_.config().device.cuda_graphs) {
    graphs_.emplace(*run_.model, run_.scaler ? &*run_.scaler : nullptr);
  }
  run_.on_rank_0([&] {
    eval::remove_predictions_after(last_step_kept(run_), run_.config().train.output);
    if (evaluations_.is_due(run_.start.step)) {
      write_config(run_.config());
    }
  });
  begin();
}

void TrainingLoop::begin() {
  if (is_over() || std::exchange(has_begun_, true)) {
    return;
  }
  run_.on_rank_0([&] {
    write_config(run_.config());
    std::error_code ignored;  // it was of fewer steps, and says that the run is done
    std::filesystem::remove(summary_path(run_.config().train.output), ignored);
    run_.log->write(beginning_of(run_));
    if (!run_.start.changes.empty()) {
      run_.log->write_changes(run_.start.step, run_.start.changes);
    }
  });
}

bool TrainingLoop::is_over() const {
  return run_.outcome.steps_done >= length_.total_steps || evaluations_.course().is_over;
}

bool TrainingLoop::take_steps() {
  const auto is_stopped = [&](bool goes_on) {
    if (!goes_on) {
      stop();
    }
    return !goes_on;
  };
  const std::int64_t start = run_.start.step;
  const bool is_missing = start > 0 ? evaluations_.is_due(start) : run_.config().eval.at_start;
  if (is_missing && is_stopped(evaluations_.evaluate(start, /*only_missing=*/start > 0))) {
    return false;
  }
  saves_.save_best(start);
  begin();  // what was missing may have been an improvement
  const track::Working training(run_.progress, fmt::format("step {}", start + 1));
  while (!is_over()) {
    const std::int64_t number = run_.outcome.steps_done + 1;
    if (is_stopped(take(launch(number)))) {
      return false;
    }
    if (saves_.is_due(number)) {
      read_pending();
      saves_.save_if_there_is_room(number);
    }
    if (evaluations_.is_due(number)) {
      read_pending();
      if (is_stopped(evaluations_.evaluate(number))) {
        return false;
      }
      saves_.save_best(number);
    }
  }
  end_early();
  finish();
  return true;
}

TrainingLoop::PendingStep TrainingLoop::launch(std::int64_t number) {
  run_.world.report_progress(fmt::format("step {}", number));
  const config::RunConfig& config = run_.config();
  const c10::Device device = run_.world.device();
  const Clock::time_point start = Clock::now();
  StepClock clock(device);
  const double lr = learning_rate(config.optim.lr, config.schedule, number, length_.total_steps);
  run_.optimizer->set_lr(lr);
  std::vector<inputs::Batch> batches;
  run_.failure.keep([&] { batches = loader_.step(number - 1); });
  StepPlan plan{number, config.optim.clip_grad_norm, run_.stops_here()};
  plan.skips_non_finite = config.train.on_non_finite == config::OnNonFinite::Skip;
  if (pending_ && !plan.skips_non_finite) {
    plan.left_out = pending_->step.left_out();
  }
  if (model::has_dropout(*run_.model->module())) {
    plan.dropout_seed = static_cast<std::uint64_t>(config.train.seed);
  }
  plan.graphs = graphs_ ? &*graphs_ : nullptr;
  plan.objective = run_.objective.get();
  const double data_wait_seconds = seconds_since(start);
  run_.failure.keep([&] { trace_.begin(number); });
  const StepProfile profile(StepProfile::Detail::Phases);
  const bool is_first = number == run_.start.step + 1;  // it makes what later ones use again
  const setup::SyncWatch watch(
      is_first ? config::SyncDebug::Default : config.device.sync_debug_mode, device);
  PendingStep made{launch_step(*run_.model, *run_.optimizer, run_.scaler ? &*run_.scaler : nullptr,
                               batches, plan, std::move(clock)),
                   number, lr, data_wait_seconds};
  if (device.is_cpu()) {
    made.phase_seconds = profile.phase_seconds();
  }
  run_.failure.keep([&] { made.traced = trace_.end(number); });
  return made;
}

bool TrainingLoop::take(PendingStep made) {
  read_pending();  // of the step before, while a device computes this one
  if (made.step.known().stop_requested) {
    return false;
  }
  run_.outcome.steps_done = made.number;
  run_.hooks.status->set_done(made.number);
  agree_on_clocks(made);
  pending_ = std::move(made);
  if (run_.world.device().is_cpu()) {
    read_pending();
  }
  return true;
}

void TrainingLoop::agree_on_clocks(PendingStep& made) {
  const Clock::time_point now = Clock::now();
  const bool keeps_time = run_.world.rank() == 0;  // clocks differ, and all ranks must do the same
  double largest[] = {static_cast<double>(setup::peak_bytes_on(run_.world.device())),
                      made.data_wait_seconds, keeps_time && saves_.time_is_up(now) ? 1.0 : 0.0,
                      keeps_time && evaluations_.time_is_up(now) ? 1.0 : 0.0};
  run_.world.all_reduce(largest, sherd::ReduceOp::Max);
  made.peak_rank_bytes = largest[0];
  made.data_wait_seconds = largest[1];
  saves_.set_time_is_up(largest[2] > 0);
  evaluations_.set_time_is_up(largest[3] > 0);
}

void TrainingLoop::read_pending() {
  if (!pending_) {
    return;
  }
  PendingStep made = std::move(*pending_);
  pending_.reset();
  // If it was not finite, neither this step nor one launched after it has updated anything.
  const std::int64_t steps_done = std::exchange(run_.outcome.steps_done, made.number - 1);
  const StepOutcome outcome = made.step.read(run_.world);
  count_skipped(made.number, outcome);
  run_.outcome.steps_done = steps_done;
  made_.add(outcome);
  run_.failure.keep([&] { tell(made, outcome); });
}

void TrainingLoop::tell(const PendingStep& made, const StepOutcome& outcome) {
  if (run_.log) {
    record(made, outcome);
  }
  if (!made.traced.empty()) {
    run_.say(made.traced);
  }
  say_kernels();
  say_attention();
}

void TrainingLoop::count_skipped(std::int64_t number, const StepOutcome& outcome) {
  if (outcome.skipped.empty()) {
    return;
  }
  const std::int64_t most = run_.config().train.max_skipped;
  if (run_.note.skipped_steps >= most) {
    throw sherd::Error(
        sherd::ExitCode::NonFinite,
        fmt::format("{} of step {} is not finite, and the run has skipped {} already "
                    "(train.max_skipped = {}). Nothing of it was saved, and the last checkpoint "
                    "is intact. The same command resumes from it with a lower optim.lr, with "
                    "optim.clip_grad_norm, in float32, or with a larger train.max_skipped.",
                    outcome.skipped, number, text::counted(run_.note.skipped_steps, "step"), most));
  }
  ++run_.note.skipped_steps;
}

void TrainingLoop::say_attention() {
  const auto choices = sherd::ops::attention_choices(run_.world.device());
  for (; attention_said_ < choices.size(); ++attention_said_) {
    run_.say("attention: " + sherd::ops::text_of(choices[attention_said_]));
  }
}

// After the first step, and again after one that left something else to LibTorch.
void TrainingLoop::say_kernels() {
  const c10::Device device = run_.world.device();
  if (device.is_cpu()) {
    return;
  }
  if (std::string kernels = sherd::ops::kernels_text(device); kernels != kernels_said_) {
    kernels_said_ = std::move(kernels);
    run_.say("kernels: " + kernels_said_);
  }
}

void TrainingLoop::record(const PendingStep& made, const StepOutcome& outcome) {
  track::StepRecord record{
      .step = made.number,
      .total_steps = length_.total_steps,
      .loss = outcome.loss,
      .grad_norm = outcome.grad_norm,
      .lr = made.lr,
      .tokens = outcome.tokens,
      .supervised_tokens = outcome.supervised_tokens,
      .samples = outcome.samples,
      .skipped = !outcome.skipped.empty(),
      .step_seconds = outcome.seconds,
      .unix_seconds = track::unix_seconds_now(),
      .peak_rank_bytes = static_cast<std::int64_t>(made.peak_rank_bytes),
      .data_wait_seconds = made.data_wait_seconds,
      .epochs = static_cast<double>(made.number) / static_cast<double>(length_.steps_per_epoch),
      .mfu = run_.mfu.of(outcome, outcome.seconds),
      .phase_seconds = made.phase_seconds,
      .figures = outcome.figures};
  for (const auto& [phase, seconds] : outcome.phase_seconds) {
    record.phase_seconds[name_of(phase)] = seconds;
  }
  write(record);
  for (const std::string& line : run_.trackers->take_news()) {
    run_.say(line);
  }
  say_step(record, outcome);
}

void TrainingLoop::write(const track::StepRecord& record) {
  if (const Clock::time_point now = Clock::now();
      now - looked_at_folder_ >= std::chrono::seconds(1)) {
    looked_at_folder_ = now;
    run_.lock->check_folder_is_there();
  }
  try {
    run_.log->write(record);
  } catch (const sherd::Error&) {
    run_.lock->check_folder_is_there();  // which would be the cause
    throw;
  }
}

void TrainingLoop::say_step(const track::StepRecord& record, const StepOutcome& outcome) {
  const std::int64_t number = record.step;
  const double each = seconds_since(started_) / static_cast<double>(made_.steps);
  const double left_seconds = each * static_cast<double>(length_.total_steps - number);
  const bool is_told = number % run_.config().log.every_steps == 0 || number == length_.total_steps;
  run_.progress->set(track::next_step_text(record, left_seconds, is_told));
  if (is_told) {
    run_.say(track::step_line(record, left_seconds, run_.progress->columns()));
  }
  if (record.skipped) {
    run_.say(fmt::format(
        "step {}: {} is not finite: the update was skipped on every rank ({} of at most {} "
        "skipped, train.max_skipped)",
        number, outcome.skipped, run_.note.skipped_steps, run_.config().train.max_skipped));
  }
  if (outcome.overflowed) {
    run_.say(fmt::format(
        "step {}: gradients overflowed in float16 and were skipped; the loss scale is lower now",
        number));
  }
  const bool has_loss = outcome.supervised_tokens > 0 && !outcome.overflowed && !record.skipped;
  if (const std::string warning =
          has_loss ? watch_.look(number, outcome.loss, outcome.grad_norm) : "";
      !warning.empty()) {
    run_.say(warning);
  }
}

void TrainingLoop::stop() {
  read_pending();
  run_.failure.share(run_.world);
  run_.outcome.stopped = true;  // also where the save fails
  if (run_.outcome.steps_done > saves_.saved_step()) {
    saves_.save_last(run_.outcome.steps_done);
  }
}

void TrainingLoop::end_early() {
  read_pending();
  const std::int64_t step = run_.outcome.steps_done;
  if (step >= length_.total_steps) {
    return;
  }
  const runs::EvaluationCourse& course = evaluations_.course();
  if (run_.config().checkpoint.at_end && saves_.saved_step() < step) {
    saves_.save_last(step);
  }
  run_.on_rank_0([&] {
    if (!run_.log->tells_early_stop()) {
      write_config(run_.config());  // with the patience that ended it
      run_.log->write_early_stop(step, course);
    }
  });
  run_.say(fmt::format(
      "ended early after step {} of {}: {} in a row without improvement "
      "(eval.patience); {}",
      step, length_.total_steps, text::counted(course.without_improvement, "evaluation"),
      course.best ? "the best was " + course.best->text() : "none had a finite measure"));
}

void TrainingLoop::finish() {
  made_.seconds = seconds_since(started_);
  run_.on_rank_0([&] { run_.log->sync(); });
  if (made_.steps > 0) {
    run_.say(done_line(made_));
    run_.outcome.warning = diverged_line(made_);
  }
}

}  // namespace llm::train
