#include "llm/train/saves.h"

#include <filesystem>

#include <fmt/core.h>

#include "llm/setup/agreement.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

// By its text, which is the same on all ranks: a checkpoint that is taken for another folder's
// costs a save, no more.
bool is_elsewhere(const Candidate& start, const setup::Checkpoints& own) {
  const auto plain = [](const std::filesystem::path& path) {
    return std::filesystem::absolute(path).lexically_normal();
  };
  return !start.folder.empty() && plain(start.folder) != plain(own.folder_of(start.step));
}

}  // namespace

Saves::Saves(Run& run, const Evaluations& evaluations)
    : run_(run),
      evaluations_(evaluations),
      checkpoints_(run.config().train.output),
      interval_(run.config().checkpoint.every, run.inputs.data.length.steps_per_epoch,
                std::chrono::steady_clock::now()),
      starts_elsewhere_(is_elsewhere(run.start, checkpoints_)),
      saved_step_(run.start.step) {
  run_.on_rank_0([&] { kept_best_ = best_at_start(); });
}

bool Saves::is_due(std::int64_t step) const {
  const bool is_last = step == run_.inputs.data.length.total_steps;
  return interval_.is_due(step, time_is_up_) || (is_last && run_.config().checkpoint.at_end);
}

void Saves::save_best(std::int64_t step) {
  if (!run_.config().checkpoint.keeps_best() || !evaluations_.is_best_at(step)) {
    return;
  }
  if (saved_step_ < step || (starts_elsewhere_ && step == run_.start.step)) {
    save_if_there_is_room(step);
  } else {
    run_.on_rank_0([&] { prune(step); });  // the one that was the best before
  }
}

// The best one so far may have had no room: then the best before it stays.
std::optional<std::int64_t> Saves::kept_best() {
  const auto& best = evaluations_.course().best;
  if (best && checkpoints_.is_complete(best->step)) {
    kept_best_ = best->step;
  }
  return run_.config().checkpoint.keeps_best() ? kept_best_ : std::nullopt;
}

std::optional<std::int64_t> Saves::best_at_start() const {
  std::vector<runs::Evaluation> saved;
  for (const runs::Evaluation& evaluation : evaluations_.earlier()) {
    if (checkpoints_.is_complete(evaluation.step)) {
      saved.push_back(evaluation);
    }
  }
  const auto best = runs::course_of(saved, runs::first_set(saved), run_.config().eval).best;
  return best ? std::optional(best->step) : std::nullopt;
}

void Saves::prune(std::int64_t newest) {
  for (const auto& folder :
       checkpoints_.prune(run_.config().checkpoint.keep, newest, kept_best())) {
    run_.say(
        fmt::format("the checkpoint in {} was removed; its folder stays, with other files in it",
                    folder.string()));
  }
}

bool Saves::make_room() {
  return !setup::from_rank_0(run_.world, [&] {
            const bool made =
                checkpoints_.make_room(run_.config().checkpoint.keep, saved_step_, kept_best());
            return std::string(made ? "made" : "");
          }).empty();
}

void Saves::save_if_there_is_room(std::int64_t step) {
  if (step == run_.inputs.data.length.total_steps) {
    save_last(step);
    return;
  }
  try {
    save(step);
  } catch (const sherd::NoRoom& fault) {  // the same on every rank
    interval_.done(std::chrono::steady_clock::now());
    run_.on_rank_0([&] {
      run_.progress->warn(
          fmt::format("the checkpoint of step {} could not be saved: {}\nThe run continues, and "
                      "saves again when the next checkpoint is due.",
                      step, fault.what()));
    });
  }
}

void Saves::save_last(std::int64_t step) {
  try {
    save(step);
  } catch (const sherd::NoRoom& fault) {
    const std::string lost = fmt::format(
        "{}\nThe checkpoint of step {} is not saved: what was learned in steps {} to {} is lost. "
        "Make room, and start the same command again: it resumes after step {}.",
        fault.what(), step, saved_step_ + 1, step, saved_step_);
    run_.on_rank_0([&] { throw sherd::Error(sherd::ExitCode::CannotWrite, lost); });
  }
}

void Saves::save(std::int64_t step) {
  const auto start = std::chrono::steady_clock::now();
  const std::string folder = checkpoints_.folder_of(step).string();
  const track::Working saving(run_.progress, "saving checkpoint " + folder);
  run_.world.report_progress("saving checkpoint " + folder);
  run_.on_rank_0([&] {
    run_.lock->check_folder_is_there();
    run_.log->sync();  // a checkpoint's steps are in the log
  });
  setup::RunNote note = run_.note;
  note.step = step;
  if (run_.scaler) {
    note.loss_scale = run_.scaler->scale();
    note.good_steps = run_.scaler->good_steps();
  }
  sherd::CheckpointContents contents;
  if (!note.base.empty()) {
    contents.base = note.base.sha256;
  }
  try {
    sherd::save_checkpoint(*run_.model, *run_.optimizer, folder, to_text(note), contents);
  } catch (const sherd::NoRoom&) {  // the same on every rank
    if (!make_room()) {
      throw;
    }
    sherd::save_checkpoint(*run_.model, *run_.optimizer, folder, to_text(note), contents);
  }
  run_.on_rank_0([&] { prune(step); });
  saved_step_ = step;
  run_.hooks.status->set_saved(step);
  interval_.done(std::chrono::steady_clock::now());
  run_.outcome.checkpoint = folder;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  run_.on_rank_0([&] {
    run_.hooks.save_takes(seconds);
    run_.log->write_checkpoint(step, folder, seconds);
  });
  run_.say(fmt::format("checkpoint {} ({:.2f} s)", folder, seconds));
}

}  // namespace llm::train
