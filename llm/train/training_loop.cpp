#include "llm/train/training_loop.h"

#include <fmt/core.h>

#include "llm/train/agreement.h"
#include "llm/train/output_folder.h"
#include "llm/train/peak_memory.h"
#include "llm/train/schedule.h"
#include "llm/train/start.h"
#include "ops/cpu/isa.h"
#include "sherd/checkpoint.h"

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
  return {run.start.step,          world.size(),      hosts.hosts,
          hosts.threads,           world.transport(), sherd::ops::cpu::isa_name(),
          run.data.identity.sha256};
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
      saved_step_(run_.start.step),
      started_(Clock::now()),
      saves_(run_.config.checkpoint.every, run_.data.length.steps_per_epoch, started_),
      evaluations_(run_.config.eval.every, run_.data.length.steps_per_epoch, started_) {
  outcome_.steps_done = run_.start.step;
  outcome_.checkpoint = run_.start.folder;
  together(world_, [&] {
    if (world_.rank() == 0) {
      if (run_.start.step < run_.data.length.total_steps || evaluation_is_due(run_.start.step)) {
        write_config(run_.config);
      }
      log_ = std::make_unique<RunLog>(log_path(run_.config).string(), run_.start.step);
      if (run_.start.step < run_.data.length.total_steps) {
        log_->write(beginning_of(run_, world_));
      }
    }
  });
}

void TrainingLoop::say(const std::string& line) const {
  if (world_.rank() == 0) {
    hooks_.say(line);
  }
}

RunOutcome TrainingLoop::run() {
  const std::int64_t total = run_.data.length.total_steps;
  const std::int64_t start = run_.start.step;
  if (start > 0 && evaluation_is_due(start) && !evaluate(start, /*only_missing=*/true)) {
    return stop();
  }
  for (std::int64_t number = start + 1; number <= total; ++number) {
    if (!step(number)) {
      return stop();
    }
    if (checkpoint_is_due(number)) {
      save(number);
    }
    if (evaluation_is_due(number) && !evaluate(number)) {
      return stop();
    }
  }
  finish();
  return outcome_;
}

bool TrainingLoop::step(std::int64_t number) {
  const Clock::time_point start = Clock::now();
  const double lr = learning_rate(run_.config.optim.lr, run_.config.schedule, number,
                                  run_.data.length.total_steps);
  optimizer_.set_lr(lr);
  const StepPlan plan{number, run_.config.optim.clip_grad_norm, hooks_.stop_requested()};
  const std::vector<data::Batch> batches = loader_.step(number - 1);
  const double data_wait_seconds = seconds_since(start);
  const StepOutcome outcome = train_step(model_, optimizer_, scaler_, batches, plan);
  if (outcome.stop_requested) {
    return false;
  }
  outcome_.steps_done = number;
  record(number, outcome, lr, seconds_since(start), data_wait_seconds);
  return true;
}

void TrainingLoop::record(std::int64_t number, const StepOutcome& outcome, double lr,
                          double seconds, double data_wait_seconds) {
  const Clock::time_point now = Clock::now();
  const bool keeps_time = world_.rank() == 0;  // clocks differ, and all ranks must do the same
  double largest[] = {static_cast<double>(peak_resident_bytes()), data_wait_seconds,
                      keeps_time && saves_.time_is_up(now) ? 1.0 : 0.0,
                      keeps_time && evaluations_.time_is_up(now) ? 1.0 : 0.0};
  world_.all_reduce(largest, sherd::ReduceOp::Max);
  save_time_is_up_ = largest[2] > 0;
  evaluation_time_is_up_ = largest[3] > 0;
  if (made_.steps++ == 0) {
    made_.first_loss = outcome.loss;
  }
  made_.last_loss = outcome.loss;
  if (!log_) {
    return;
  }
  const RunLength& length = run_.data.length;
  const track::StepRecord record{
      .step = number,
      .total_steps = length.total_steps,
      .loss = outcome.loss,
      .grad_norm = outcome.grad_norm,
      .lr = lr,
      .tokens = outcome.tokens,
      .supervised_tokens = outcome.supervised_tokens,
      .samples = outcome.samples,
      .step_seconds = seconds,
      .unix_seconds = track::unix_seconds_now(),
      .peak_rank_bytes = static_cast<std::int64_t>(largest[0]),
      .data_wait_seconds = largest[1],
      .epochs = static_cast<double>(number) / static_cast<double>(length.steps_per_epoch)};
  run_.lock->check_folder_is_there();
  log_->write(record);
  if (number % run_.config.log.every_steps == 0 || number == length.total_steps) {
    const double each = seconds_since(started_) / static_cast<double>(made_.steps);
    say(track::step_line(record, each * static_cast<double>(length.total_steps - number)));
  }
  if (outcome.overflowed) {
    say(
        fmt::format("step {}: gradients overflowed in float16 and were left out; the loss is "
                    "scaled by less now",
                    number));
  }
  if (const std::string warning = outcome.supervised_tokens > 0 && !outcome.overflowed
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

EvaluationKey TrainingLoop::evaluation_key(std::int64_t number, const Heldout& heldout) const {
  return {number, heldout.sha256, static_cast<std::int64_t>(heldout.dataset.samples.size()),
          run_.config.eval.generate};
}

bool TrainingLoop::is_evaluated(const EvaluationKey& key) {
  return !from_first_rank(world_, [&] { return std::string(log_->has(key) ? "yes" : ""); }).empty();
}

bool TrainingLoop::evaluate(std::int64_t number, bool only_missing) {
  for (const Heldout& heldout : run_.data.heldout) {
    const bool done = only_missing && is_evaluated(evaluation_key(number, heldout));
    if (!done && !evaluate(number, heldout)) {
      return false;
    }
  }
  evaluations_.done(Clock::now());
  return true;
}

bool TrainingLoop::evaluate(std::int64_t number, const Heldout& heldout) {
  const config::EvalSection& policy = run_.config.eval;
  const EvaluationKey key = evaluation_key(number, heldout);
  const std::string& name = heldout.dataset.report.name;
  const std::string of_file = run_.data.heldout.size() > 1 ? " of " + name : "";
  say(fmt::format("evaluating {} questions{} after step {} …", key.samples, of_file, number));
  const auto result = eval::evaluate(model_, heldout.dataset, run_.tokenizer,
                                     {policy.batch, policy.generate, hooks_.stop_requested});
  if (!result) {
    return false;
  }
  if (log_) {
    log_->write(key, name, *result);
  }
  say(fmt::format("evaluation{}: {}", of_file, eval::evaluation_text(*result, policy.generate)));
  return true;
}

void TrainingLoop::save(std::int64_t number) {
  const Clock::time_point start = Clock::now();
  const std::string folder = checkpoints_.folder_of(number).string();
  together(world_, [&] {
    if (world_.rank() == 0) {
      run_.lock->check_folder_is_there();
      log_->sync();  // a checkpoint's steps are in the log
    }
  });
  RunNote note = run_.note;
  note.step = number;
  if (scaler_ != nullptr) {
    note.loss_scale = scaler_->scale();
    note.good_steps = scaler_->good_steps();
  }
  sherd::save_checkpoint(model_, optimizer_, folder, to_text(note));
  if (world_.rank() == 0) {
    checkpoints_.prune(run_.config.checkpoint.keep, number);
  }
  saved_step_ = number;
  saves_.done(Clock::now());
  outcome_.checkpoint = folder;
  const double seconds = seconds_since(start);
  if (log_) {
    log_->write_checkpoint(number, folder, seconds);
  }
  say(fmt::format("checkpoint {} ({:.2f} s)", folder, seconds));
}

// What was learned since the last checkpoint is saved; without a step there is nothing to save.
RunOutcome TrainingLoop::stop() {
  outcome_.stopped = true;
  if (outcome_.steps_done > saved_step_) {
    save(outcome_.steps_done);
  }
  return outcome_;
}

void TrainingLoop::finish() {
  made_.seconds = seconds_since(started_);
  if (log_) {
    log_->sync();
  }
  if (made_.steps > 0) {
    say(done_line(made_));
  }
}

}  // namespace llm::train
