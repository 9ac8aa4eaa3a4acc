#include "llm/train/training_loop.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "llm/plan/rates.h"
#include "llm/train/agreement.h"
#include "llm/train/device.h"
#include "llm/train/options_of_config.h"
#include "llm/train/output_folder.h"
#include "llm/train/peak_memory.h"
#include "llm/train/prediction_files.h"
#include "llm/train/schedule.h"
#include "llm/train/start.h"
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

data::Loader loader_of(const Prepared& run, int rank) {
  const auto seed = static_cast<std::uint64_t>(run.config.train.seed);
  const data::Sampler sampler(run.data.length.rows, run.config.train.global_batch, seed);
  return {run.data.training, run.data.rows, sampler, run.shape, rank};
}

Beginning beginning_of(const Prepared& run, const sherd::World& world) {
  const PlannedHosts hosts = hosts_of(world);
  return {.step = run.start.step,
          .ranks = world.size(),
          .hosts = hosts.hosts,
          .threads = hosts.threads,
          .transport = world.transport(),
          .isa = path_of(world),
          .data_sha256 = run.data.identity.sha256,
          .peak_operations_per_second =
              run.mfu.peak ? std::optional(run.mfu.peak->operations_per_second) : std::nullopt};
}

// On rank 0, null on the others. A resumed run keeps its lines up to the start.
std::unique_ptr<RunLog> open_log(const Prepared& run, sherd::World& world, const RunHooks& hooks) {
  std::unique_ptr<RunLog> log;
  together(world, [&] {
    if (world.rank() == 0) {
      std::vector<std::string> eval_paths;
      for (const config::DataSet& set : run.config.data.eval) {
        eval_paths.push_back(set.path);
      }
      log = std::make_unique<RunLog>(log_path(run.config).string(), run.start.step, *run.trackers,
                                     eval_paths, hooks.warn);
    }
  });
  return log;
}

runs::EvaluationSet set_of(const Prepared& run, std::size_t data_file) {
  const Heldout& heldout = run.data.heldout[data_file];
  return runs::evaluation_set(static_cast<int>(data_file), run.config.data.eval[data_file],
                              heldout.sha256, heldout.format);
}

// The one whose evaluations tell the best.
runs::EvaluationSet first_heldout(const Prepared& run) {
  return run.data.heldout.empty() ? runs::EvaluationSet() : set_of(run, 0);
}

// By its text, which is the same on all ranks: a checkpoint that is taken for another folder's
// costs a save, no more.
bool is_elsewhere(const Candidate& start, const Checkpoints& own) {
  const auto plain = [](const std::filesystem::path& path) {
    return std::filesystem::absolute(path).lexically_normal();
  };
  return !start.folder.empty() && plain(start.folder) != plain(own.folder_of(start.step));
}

// What evaluations after the start have left is of steps that come again.
std::int64_t last_step_kept(const Prepared& run) {
  return run.start.step > 0 ? run.start.step : -1;
}

DeviceLimits limits_of_run(const config::RunConfig& config, const plan::Device& device) {
  return limits_of(device, dtype_of(config.precision.param_dtype),
                   plan::readable_gpu_rates(device.name));
}

}  // namespace

TrainingLoop::TrainingLoop(Prepared prepared, sherd::Sharded<model::CausalLm>& model,
                           sherd::AdamW& optimizer, sherd::GradScaler* scaler,
                           const RunHooks& hooks)
    : run_(std::move(prepared)),
      model_(model),
      optimizer_(optimizer),
      scaler_(scaler),
      hooks_(hooks),
      world_(model.world()),
      checkpoints_(run_.config.train.output),
      loader_(loader_of(run_, world_.rank())),
      log_(open_log(run_, world_, hooks)),
      best_(world_, run_.config.eval, first_heldout(run_), [&] { return earlier_evaluations(); }),
      starts_elsewhere_(is_elsewhere(run_.start, checkpoints_)),
      trace_(run_.config.log.trace_steps,
             std::filesystem::path(run_.config.train.output) / "traces", world_.rank(),
             world_.device(), limits_of_run(run_.config, hosts_of(world_).device)),
      saved_step_(run_.start.step),
      started_(Clock::now()),
      saves_(run_.config.checkpoint.every, run_.data.length.steps_per_epoch, started_),
      evaluations_(run_.config.eval.every, run_.data.length.steps_per_epoch, started_) {
  outcome_.steps_done = run_.start.step;
  outcome_.checkpoint = run_.start.folder;
  hooks_.unsaved->set_saved(run_.start.step);
  hooks_.unsaved->set_done(run_.start.step);
  if (run_.config.device.cuda_graphs) {
    graphs_.emplace(model_, scaler_);
  }
  on_first_rank([&] {
    kept_best_ = best_at_start();
    remove_predictions_after(last_step_kept(run_), run_.config.train.output);
    if (evaluation_is_due(run_.start.step)) {
      write_config(run_.config);
    }
  });
  begin();
}

std::vector<runs::Evaluation> TrainingLoop::earlier_evaluations() const {
  return run_.data.heldout.empty() ? std::vector<runs::Evaluation>()
                                   : log_->evaluations(evaluation_key(run_.start.step, 0));
}

void TrainingLoop::on_first_rank(const std::function<void()>& work) {
  together(world_, [&] {
    if (failure_) {
      std::rethrow_exception(std::exchange(failure_, nullptr));
    }
    if (world_.rank() == 0) {
      work();
    }
  });
}

void TrainingLoop::keep_failure(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    if (!failure_) {
      failure_ = std::current_exception();
    }
  }
}

void TrainingLoop::share_failure() {
  on_first_rank([] {});
}

bool TrainingLoop::stops_here() {
  bool stops = true;
  keep_failure([&] { stops = hooks_.stop_requested(); });
  return stops || failure_;
}

void TrainingLoop::begin() {
  if (is_over() || std::exchange(has_begun_, true)) {
    return;
  }
  on_first_rank([&] {
    write_config(run_.config);
    std::error_code ignored;  // it was of fewer steps, and says that the run is done
    std::filesystem::remove(summary_path(run_.config.train.output), ignored);
    log_->write(beginning_of(run_, world_));
    if (!run_.start.changes.empty()) {
      log_->write_changes(run_.start.step, run_.start.changes);
    }
  });
}

void TrainingLoop::record_end(track::End how, const std::string& why) {
  log_->write_end(outcome_.steps_done, how, why);
  log_->sync();
}

bool TrainingLoop::is_over() const {
  return outcome_.steps_done >= run_.data.length.total_steps || best_.course().is_over;
}

void TrainingLoop::say(const std::string& line) {
  if (world_.rank() == 0) {
    keep_failure([&] { hooks_.say(line); });
  }
}

RunOutcome TrainingLoop::run() {
  const std::int64_t start = run_.start.step;
  const bool is_missing = start > 0 ? evaluation_is_due(start) : run_.config.eval.at_start;
  if (is_missing && !evaluate(start, /*only_missing=*/start > 0)) {
    return stop();
  }
  save_best(start);
  begin();  // what was missing may have been an improvement
  const track::Working training(run_.progress, fmt::format("step {}", start + 1));
  while (!is_over()) {
    const std::int64_t number = outcome_.steps_done + 1;
    if (!step(number)) {
      return stop();
    }
    if (checkpoint_is_due(number)) {
      save_if_there_is_room(number);
    }
    if (evaluation_is_due(number)) {
      if (!evaluate(number)) {
        return stop();
      }
      save_best(number);
    }
  }
  end_early();
  finish();
  return outcome_;
}

TrainingLoop::Unread TrainingLoop::launch(std::int64_t number) {
  const Clock::time_point start = Clock::now();
  StepClock clock(world_.device());
  const double lr = learning_rate(run_.config.optim.lr, run_.config.schedule, number,
                                  run_.data.length.total_steps);
  optimizer_.set_lr(lr);
  std::vector<data::Batch> batches;
  keep_failure([&] { batches = loader_.step(number - 1); });
  StepPlan plan{number, run_.config.optim.clip_grad_norm, stops_here()};
  plan.skips_non_finite = run_.config.train.on_non_finite == config::OnNonFinite::Skip;
  if (unread_ && !plan.skips_non_finite) {
    plan.left_out = unread_->step.left_out();
  }
  plan.graphs = graphs_ ? &*graphs_ : nullptr;
  const double data_wait_seconds = seconds_since(start);
  keep_failure([&] { trace_.begin(number); });
  const StepProfile profile(StepProfile::Detail::Phases);
  const bool is_first = number == run_.start.step + 1;  // it makes what later ones use again
  const SyncWatch watch(is_first ? config::SyncDebug::Default : run_.config.device.sync_debug_mode,
                        world_.device());
  Unread made{launch_step(model_, optimizer_, scaler_, batches, plan, std::move(clock)), number, lr,
              data_wait_seconds};
  if (world_.device().is_cpu()) {
    made.phase_seconds = profile.phase_seconds();
  }
  keep_failure([&] { made.traced = trace_.end(number); });
  return made;
}

bool TrainingLoop::step(std::int64_t number) {
  world_.report_progress(fmt::format("step {}", number));
  Unread made = launch(number);
  settle();  // of the step before, while a device computes this one
  if (made.step.known().stop_requested) {
    return false;
  }
  outcome_.steps_done = number;
  hooks_.unsaved->set_done(number);
  agree_on_clocks(made);
  unread_ = std::move(made);
  if (world_.device().is_cpu()) {
    settle();
  }
  return true;
}

void TrainingLoop::agree_on_clocks(Unread& made) {
  const Clock::time_point now = Clock::now();
  const bool keeps_time = world_.rank() == 0;  // clocks differ, and all ranks must do the same
  double largest[] = {static_cast<double>(peak_bytes_on(world_.device())), made.data_wait_seconds,
                      keeps_time && saves_.time_is_up(now) ? 1.0 : 0.0,
                      keeps_time && evaluations_.time_is_up(now) ? 1.0 : 0.0};
  world_.all_reduce(largest, sherd::ReduceOp::Max);
  made.peak_rank_bytes = largest[0];
  made.data_wait_seconds = largest[1];
  save_time_is_up_ = largest[2] > 0;
  evaluation_time_is_up_ = largest[3] > 0;
}

void TrainingLoop::settle() {
  if (!unread_) {
    return;
  }
  Unread made = std::move(*unread_);
  unread_.reset();
  // If it was not finite, neither this step nor one launched after it has updated anything.
  const std::int64_t steps_done = std::exchange(outcome_.steps_done, made.number - 1);
  const StepOutcome outcome = made.step.read(world_);
  count_skipped(made.number, outcome);
  outcome_.steps_done = steps_done;
  made_.add(outcome);
  keep_failure([&] { tell(made, outcome); });
}

void TrainingLoop::tell(const Unread& made, const StepOutcome& outcome) {
  if (log_) {
    record(made, outcome);
  }
  if (!made.traced.empty()) {
    say(made.traced);
  }
  say_kernels();
  say_attention();
}

void TrainingLoop::count_skipped(std::int64_t number, const StepOutcome& outcome) {
  if (outcome.skipped.empty()) {
    return;
  }
  const std::int64_t most = run_.config.train.max_skipped;
  if (run_.note.skipped_steps >= most) {
    throw sherd::Error(
        sherd::ExitCode::NonFinite,
        fmt::format("{} of step {} is not finite, and the run has skipped {} already "
                    "(train.max_skipped = {}). Nothing of it was saved, and the last checkpoint "
                    "is intact. The same command resumes from it with a lower optim.lr, with "
                    "optim.clip_grad_norm, in float32, or with a larger train.max_skipped.",
                    outcome.skipped, number, counted(run_.note.skipped_steps, "step"), most));
  }
  ++run_.note.skipped_steps;
}

void TrainingLoop::say_attention() {
  const auto choices = sherd::ops::attention_choices(world_.device());
  for (; attention_said_ < choices.size(); ++attention_said_) {
    say("attention: " + sherd::ops::text_of(choices[attention_said_]));
  }
}

// After the first step, and again after one that left something else to LibTorch.
void TrainingLoop::say_kernels() {
  const c10::Device device = world_.device();
  if (device.is_cpu()) {
    return;
  }
  if (std::string kernels = sherd::ops::kernels_text(device); kernels != kernels_said_) {
    kernels_said_ = std::move(kernels);
    say("kernels: " + kernels_said_);
  }
}

void TrainingLoop::record(const Unread& made, const StepOutcome& outcome) {
  const std::int64_t number = made.number;
  const RunLength& length = run_.data.length;
  track::StepRecord record{
      .step = number,
      .total_steps = length.total_steps,
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
      .epochs = static_cast<double>(number) / static_cast<double>(length.steps_per_epoch),
      .mfu = run_.mfu.of(outcome, outcome.seconds),
      .phase_seconds = made.phase_seconds};
  for (const auto& [phase, seconds] : outcome.phase_seconds) {
    record.phase_seconds[name_of(phase)] = seconds;
  }
  if (const Clock::time_point now = Clock::now();
      now - looked_at_folder_ >= std::chrono::seconds(1)) {
    looked_at_folder_ = now;
    run_.lock->check_folder_is_there();
  }
  try {
    log_->write(record);
  } catch (const sherd::Error&) {
    run_.lock->check_folder_is_there();  // which would be the cause
    throw;
  }
  for (const std::string& line : run_.trackers->take_news()) {
    say(line);
  }
  const double each = seconds_since(started_) / static_cast<double>(made_.steps);
  const double left_seconds = each * static_cast<double>(length.total_steps - number);
  const bool is_told = number % run_.config.log.every_steps == 0 || number == length.total_steps;
  run_.progress->set(track::next_step_text(record, left_seconds, is_told));
  if (is_told) {
    say(track::step_line(record, left_seconds, hooks_.columns()));
  }
  if (record.skipped) {
    say(fmt::format(
        "step {}: {} is not finite: the update was skipped on every rank ({} of at most {} "
        "skipped, train.max_skipped)",
        number, outcome.skipped, run_.note.skipped_steps, run_.config.train.max_skipped));
  }
  if (outcome.overflowed) {
    say(fmt::format(
        "step {}: gradients overflowed in float16 and were skipped; the loss scale is lower now",
        number));
  }
  if (const std::string warning =
          outcome.supervised_tokens > 0 && !outcome.overflowed && !record.skipped
              ? watch_.look(number, outcome.loss, outcome.grad_norm)
              : "";
      !warning.empty()) {
    say(warning);
  }
}

bool TrainingLoop::checkpoint_is_due(std::int64_t number) const {
  const bool last = number == run_.data.length.total_steps;
  return saves_.is_due(number, save_time_is_up_) || (last && run_.config.checkpoint.at_end);
}

bool TrainingLoop::evaluation_is_due(std::int64_t number) const {
  const config::EvalSection& policy = run_.config.eval;
  const bool last = number == run_.data.length.total_steps;
  return !run_.data.heldout.empty() &&
         (evaluations_.is_due(number, evaluation_time_is_up_) || (last && policy.at_end));
}

EvaluationKey TrainingLoop::evaluation_key(std::int64_t number, std::size_t data_file) const {
  const Heldout& heldout = run_.data.heldout[data_file];
  return {number, set_of(run_, data_file), heldout.sha256,
          static_cast<std::int64_t>(heldout.dataset.samples.size()), run_.config.eval.generate};
}

eval::EvaluationOptions TrainingLoop::evaluation_options(std::int64_t samples) {
  const config::EvalSection& policy = run_.config.eval;
  eval::EvaluationOptions options{policy.batch, policy.generate, [this] { return stops_here(); }};
  options.alone = [this](const std::function<void()>& work) { keep_failure(work); };
  if (run_.progress != nullptr) {
    options.on_progress = [progress = run_.progress, samples](std::int64_t done) {
      progress->count(done, samples, "questions");
    };
  }
  return options;
}

bool TrainingLoop::is_evaluated(const EvaluationKey& key) {
  return !from_first_rank(world_, [&] { return std::string(log_->has(key) ? "yes" : ""); }).empty();
}

bool TrainingLoop::evaluate(std::int64_t number, bool only_missing) {
  settle();
  share_failure();
  for (std::size_t i = 0; i < run_.data.heldout.size(); ++i) {
    const EvaluationKey key = evaluation_key(number, i);
    if (!(only_missing && is_evaluated(key)) && !evaluate(number, i)) {
      return false;
    }
  }
  evaluations_.done(Clock::now());
  return true;
}

bool TrainingLoop::evaluate(std::int64_t number, std::size_t data_file) {
  const config::EvalSection& policy = run_.config.eval;
  const Heldout& heldout = run_.data.heldout[data_file];
  const EvaluationKey key = evaluation_key(number, data_file);
  const std::string& name = heldout.dataset.report.name;
  const std::string of_file = run_.data.heldout.size() > 1 ? " of " + name : "";
  say(fmt::format("evaluating {} questions{} {} …", key.samples, of_file,
                  number == 0 ? "before the first step" : fmt::format("after step {}", number)));
  const auto result = [&] {
    const track::Working evaluating(run_.progress, "evaluating" + of_file);
    return eval::evaluate(model_, heldout.dataset, run_.tokenizer, evaluation_options(key.samples));
  }();
  if (!result) {
    return false;
  }
  const bool keeps_answers = policy.generate && policy.predictions;
  const std::string answers = keeps_answers ? predictions_name(number, data_file) : "";
  together(world_, [&] {
    if (log_) {
      const bool kept = keeps_answers && if_there_is_room(answers, hooks_.warn, [&] {
                          write_predictions(run_.config.train.output, answers, result->predictions);
                        });
      log_->write(key, name, *result, kept ? answers + ".json" : "");
    }
  });
  say(fmt::format("evaluation{}: {}", of_file, eval::evaluation_text(*result, policy.generate)));
  if (data_file == 0) {
    judge(number, *result);
  }
  return true;
}

void TrainingLoop::judge(std::int64_t number, const eval::EvaluationResult& result) {
  runs::Evaluation evaluation{.step = number,
                              .samples = result.samples,
                              .loss = result.loss,
                              .seconds = result.seconds,
                              .set = first_heldout(run_)};
  if (run_.config.eval.generate) {
    evaluation.em = result.em;
    evaluation.f1 = result.f1;
  }
  best_.add(std::move(evaluation));
  const runs::EvaluationCourse& course = best_.course();
  if (number == 0 || !course.best) {
    return;
  }
  if (best_.is_at(number)) {
    on_first_rank([&] { log_->write(*course.best); });
  }
  say(best_.is_at(number) ? "the best evaluation so far: " + course.best->text()
                          : "the best evaluation stays " + course.best->text());
}

void TrainingLoop::end_early() {
  settle();
  const std::int64_t step = outcome_.steps_done;
  if (step >= run_.data.length.total_steps) {
    return;
  }
  const runs::EvaluationCourse& course = best_.course();
  if (run_.config.checkpoint.at_end && saved_step_ < step) {
    save_last(step);
  }
  on_first_rank([&] {
    if (!log_->tells_early_stop()) {
      write_config(run_.config);  // with the patience that ended it
      log_->write_early_stop(step, course);
    }
  });
  say(fmt::format(
      "ended early after step {} of {}: {} evaluations in a row without improvement "
      "(eval.patience); {}",
      step, run_.data.length.total_steps, course.without_improvement,
      course.best ? "the best was " + course.best->text() : "none had a finite measure"));
}

void TrainingLoop::finish() {
  made_.seconds = seconds_since(started_);
  on_first_rank([&] { log_->sync(); });
  if (made_.steps > 0) {
    say(done_line(made_));
    outcome_.warning = diverged_line(made_);
  }
}

}  // namespace llm::train
