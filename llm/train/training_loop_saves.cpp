// When a run saves, what a full disk costs, and which checkpoints stay.

#include <chrono>

#include <fmt/core.h>

#include "llm/train/agreement.h"
#include "llm/train/training_loop.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/no_room.h"

namespace llm::train {

void TrainingLoop::save_best(std::int64_t number) {
  if (!run_.config.checkpoint.keeps_best() || !best_.is_at(number)) {
    return;
  }
  if (saved_step_ < number || (starts_elsewhere_ && number == run_.start.step)) {
    save_if_there_is_room(number);
  } else {
    on_first_rank([&] { prune(number); });  // the one that was the best before
  }
}

// The best one so far may have had no room: then the best before it stays.
std::optional<std::int64_t> TrainingLoop::kept_best() {
  const auto& best = best_.course().best;
  if (best && checkpoints_.is_complete(best->step)) {
    kept_best_ = best->step;
  }
  return run_.config.checkpoint.keeps_best() ? kept_best_ : std::nullopt;
}

std::optional<std::int64_t> TrainingLoop::best_at_start() const {
  std::vector<runs::Evaluation> saved;
  for (const runs::Evaluation& evaluation : earlier_evaluations()) {
    if (checkpoints_.is_complete(evaluation.step)) {
      saved.push_back(evaluation);
    }
  }
  const auto best = runs::course_of(saved, runs::first_set(saved), run_.config.eval).best;
  return best ? std::optional(best->step) : std::nullopt;
}

void TrainingLoop::prune(std::int64_t newest) {
  for (const auto& folder : checkpoints_.prune(run_.config.checkpoint.keep, newest, kept_best())) {
    say(fmt::format("the checkpoint in {} was removed; its folder stays, with other files in it",
                    folder.string()));
  }
}

bool TrainingLoop::make_room() {
  return !from_first_rank(world_, [&] {
            const bool made =
                checkpoints_.make_room(run_.config.checkpoint.keep, saved_step_, kept_best());
            return std::string(made ? "made" : "");
          }).empty();
}

void TrainingLoop::save_if_there_is_room(std::int64_t number) {
  if (number == run_.data.length.total_steps) {
    save_last(number);
    return;
  }
  try {
    save(number);
  } catch (const sherd::NoRoom& fault) {  // the same on every rank
    saves_.done(std::chrono::steady_clock::now());
    on_first_rank([&] {
      hooks_.warn(
          fmt::format("the checkpoint of step {} could not be saved: {}\nThe run continues, and "
                      "saves again when the next checkpoint is due.",
                      number, fault.what()));
    });
  }
}

void TrainingLoop::save_last(std::int64_t number) {
  try {
    save(number);
  } catch (const sherd::NoRoom& fault) {
    const std::string lost = fmt::format(
        "{}\nThe checkpoint of step {} is not saved: what was learned in steps {} to {} is lost. "
        "Make room, and start the same command again: it resumes after step {}.",
        fault.what(), number, saved_step_ + 1, number, saved_step_);
    on_first_rank([&] { throw sherd::Error(sherd::ExitCode::CannotWrite, lost); });
  }
}

void TrainingLoop::save(std::int64_t number) {
  settle();
  const auto start = std::chrono::steady_clock::now();
  const std::string folder = checkpoints_.folder_of(number).string();
  const track::Working saving(run_.progress, "saving checkpoint " + folder);
  world_.report_progress("saving checkpoint " + folder);
  on_first_rank([&] {
    run_.lock->check_folder_is_there();
    log_->sync();  // a checkpoint's steps are in the log
  });
  RunNote note = run_.note;
  note.step = number;
  if (scaler_ != nullptr) {
    note.loss_scale = scaler_->scale();
    note.good_steps = scaler_->good_steps();
  }
  try {
    sherd::save_checkpoint(model_, optimizer_, folder, to_text(note));
  } catch (const sherd::NoRoom&) {  // the same on every rank
    if (!make_room()) {
      throw;
    }
    sherd::save_checkpoint(model_, optimizer_, folder, to_text(note));
  }
  on_first_rank([&] { prune(number); });
  saved_step_ = number;
  hooks_.unsaved->set_saved(number);
  saves_.done(std::chrono::steady_clock::now());
  outcome_.checkpoint = folder;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  on_first_rank([&] {
    hooks_.save_takes(seconds);
    log_->write_checkpoint(number, folder, seconds);
  });
  say(fmt::format("checkpoint {} ({:.2f} s)", folder, seconds));
}

// What was learned since the last checkpoint is saved; without a step there is nothing to save.
RunOutcome TrainingLoop::stop() {
  settle();
  share_failure();
  outcome_.stopped = true;  // also where the save fails
  if (outcome_.steps_done > saved_step_) {
    save_last(outcome_.steps_done);
  }
  return outcome_;
}

}  // namespace llm::train
