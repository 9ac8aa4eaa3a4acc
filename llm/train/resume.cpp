#include "llm/train/resume.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "llm/runs/run_summary.h"
#include "llm/setup/agreement.h"
#include "llm/setup/checkpoints.h"
#include "llm/track/progress.h"
#include "llm/train/output_folder.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"

namespace llm::train {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using sherd::Error;
using sherd::ExitCode;

// Without links and dots, so that two ways to write a path are one.
std::string plain_path(const std::string& path) {
  std::error_code ignored;
  const fs::path plain = fs::weakly_canonical(path, ignored);
  return plain.empty() ? fs::absolute(path).string() : plain.string();
}

bool lies_in(const std::string& path, const fs::path& folder) {
  const fs::path relative = fs::path(plain_path(path)).lexically_relative(plain_path(folder));
  return !relative.empty() && *relative.begin() != "..";
}

void check_same_model(const std::string& folder, const sherd::CheckpointManifest& manifest,
                      const model::CausalLmImpl& model) {
  for (const auto& parameter : model.named_parameters()) {
    const auto found = manifest.parameters.find(parameter.key());
    if (found != manifest.parameters.end() && found->second.shape != parameter.value().sizes()) {
      throw Error(
          ExitCode::BadData,
          fmt::format(
              "the checkpoint in '{}' is of another model: the shape of '{}' differs. Start with "
              "the model it was made from, or with --resume never and another train.output.",
              folder, parameter.key()));
    }
  }
}

std::vector<fs::path> newest_first(const setup::Checkpoints& own) {
  return own.complete_steps().empty()
             ? std::vector<fs::path>()
             : setup::checkpoints_at(own.root().parent_path().string(), "");
}

// The newest note that can be read.
std::optional<setup::RunNote> newest_note(const std::vector<fs::path>& folders) {
  for (const fs::path& folder : folders) {
    try {
      return setup::note_from_text(sherd::CheckpointManifest::read(folder.string()).note,
                                   folder.string());
    } catch (const Error&) {
      continue;  // damaged: reported when it would be used
    }
  }
  return std::nullopt;
}

// Those folders that can be read and are of this run. The first that can be read must be.
std::vector<Candidate> sound_candidates(const std::vector<fs::path>& folders,
                                        const setup::RunNote& now, const model::CausalLmImpl& model,
                                        const track::Say& say) {
  std::vector<Candidate> sound;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    const std::string folder = folders[i].string();
    try {
      const auto manifest = sherd::CheckpointManifest::read(folder);
      const setup::RunNote then = setup::note_from_text(manifest.note, folder);
      setup::check_same_run(then, now, folder);
      check_same_model(folder, manifest, model);
      if (sound.empty() && !setup::other_isa(then, now).empty()) {
        say(setup::other_isa(then, now));
      }
      sound.push_back({folder, then.step, setup::changed_numbers(then, now, folder)});
    } catch (const Error& error) {
      const bool damaged = setup::is_damage(error);
      if (sound.empty() && (!damaged || i + 1 == folders.size())) {
        throw;
      }
      if (damaged) {
        say(fmt::format("the checkpoint in '{}' cannot be used: {}", folder, error.what()));
      }
    }
  }
  return sound;
}

// Refuses a start that would overwrite the checkpoints of a longer run.
void refuse_to_lose(const setup::Checkpoints& own, const config::RunConfig& config,
                    std::int64_t start) {
  const auto steps = own.complete_steps();
  if (steps.empty() || steps.back() <= start) {
    return;
  }
  const std::string held =
      fmt::format("'{}' holds a checkpoint of step {}", config.train.output, steps.back());
  throw Error(
      ExitCode::CannotWrite,
      fmt::format(
          "{}, and a run that starts {} would replace it and the log. Set train.output to "
          "another folder; or continue from it without --resume; or give --resume overwrite "
          "to delete it and start over.",
          held, start == 0 ? "over" : fmt::format("at step {}", start)));
}

// A user's file where a later checkpoint may have to be.
void refuse_to_replace(const setup::Checkpoints& own, std::int64_t start) {
  if (const auto other = own.other_file_after(start)) {
    throw Error(
        ExitCode::CannotWrite,
        fmt::format("'{}' is not part of a checkpoint, and a checkpoint of this run may have to "
                    "replace its folder. Move it away, or set train.output to another folder.",
                    other->string()));
  }
}

ResumePlan plan_from_path(const config::RunConfig& config, const setup::Checkpoints& own) {
  ResumePlan plan;
  plan.origin = plain_path(config.checkpoint.resume);
  const auto note = newest_note(newest_first(own));
  const bool goes_on = note && note->origin == plan.origin &&
                       !lies_in(config.checkpoint.resume, config.train.output);
  const auto folders = goes_on
                           ? newest_first(own)
                           : setup::checkpoints_at(config.checkpoint.resume, "checkpoint.resume");
  for (const fs::path& folder : folders) {
    plan.candidates.push_back({folder.string(), 0});
  }
  return plan;
}

bool is_begun_by(const setup::RunNote& newest, const setup::Launch& launch) {
  return launch.restarted && newest.overwritten_by == launch.id;
}

bool is_unfinished_overwriter(const setup::RunNote& newest, const std::string& output) {
  return !newest.overwritten_by.empty() && newest.step < newest.total_steps &&
         runs::end_in_summary(summary_path(output)) != "finished";
}

bool is_same_command(const setup::RunNote& newest, const setup::RunNote& now,
                     const std::string& folder) {
  try {
    setup::check_same_run(newest, now, folder);
    return setup::changed_numbers(newest, now, folder).empty();
  } catch (const Error&) {
    return false;  // of other settings, model or data, or of a later version
  }
}

// True if the run in train.output, with the note `newest`, was begun by this "overwrite".
bool has_overwritten(const setup::RunNote& newest, const setup::RunNote& now,
                     const setup::Launch& launch, const std::string& output) {
  return is_begun_by(newest, launch) ||
         (is_unfinished_overwriter(newest, output) && is_same_command(newest, now, output));
}

ResumePlan plan_of(const config::RunConfig& config, const setup::RunNote& now,
                   const model::CausalLmImpl& model, const setup::Launch& launch,
                   const track::Say& say) {
  const std::string& resume = config.checkpoint.resume;
  const setup::Checkpoints own(config.train.output);
  const auto newest = newest_note(newest_first(own));
  const bool overwrites = resume == "overwrite";
  const bool goes_on =
      overwrites && newest && has_overwritten(*newest, now, launch, config.train.output);
  ResumePlan plan;
  if (overwrites && !goes_on) {
    refuse_to_replace(own, 0);
    plan.overwrite = true;
    plan.overwritten_by = launch.id;
    return plan;
  }
  if (goes_on) {
    say(fmt::format(
        "checkpoint.resume = \"overwrite\" was already applied: {} began the run in '{}' with it, "
        "and this start resumes that run. To start over again, delete '{}' first",
        newest->overwritten_by, config.train.output, own.root().string()));
  }
  std::vector<fs::path> folders;
  if (resume == "auto" || goes_on) {
    folders = newest_first(own);
    plan.origin = newest ? newest->origin : "";
    plan.overwritten_by = newest ? newest->overwritten_by : "";
  } else if (resume != "never") {
    plan = plan_from_path(config, own);
    for (const Candidate& candidate : plan.candidates) {
      folders.emplace_back(candidate.folder);
    }
  }
  plan.candidates = sound_candidates(folders, now, model, say);
  if (resume != "auto" && !goes_on) {
    refuse_to_lose(own, config, plan.candidates.empty() ? 0 : plan.candidates.front().step);
  }
  refuse_to_replace(own, plan.candidates.empty() ? 0 : plan.candidates.front().step);
  return plan;
}

json to_json(const ResumePlan& plan) {
  json candidates = json::array();
  for (const Candidate& candidate : plan.candidates) {
    json changes = json::array();
    for (const config::Difference& each : candidate.changes) {
      changes.push_back({each.key, each.before, each.after});
    }
    candidates.push_back({candidate.folder, candidate.step, changes});
  }
  return {{"candidates", candidates},
          {"origin", plan.origin},
          {"overwrite", plan.overwrite},
          {"overwritten_by", plan.overwritten_by}};
}

ResumePlan plan_from_json(const json& source) {
  ResumePlan plan;
  for (const json& candidate : source["candidates"]) {
    Candidate read{candidate[0].get<std::string>(), candidate[1].get<std::int64_t>()};
    for (const json& change : candidate[2]) {
      read.changes.push_back({change[0].get<std::string>(), change[1].get<std::string>(),
                              change[2].get<std::string>(), config::OnResume::Numbers});
    }
    plan.candidates.push_back(std::move(read));
  }
  plan.origin = source["origin"].get<std::string>();
  plan.overwrite = source["overwrite"].get<bool>();
  plan.overwritten_by = source["overwritten_by"].get<std::string>();
  return plan;
}

}  // namespace

ResumePlan plan_resume(const config::RunConfig& config, const setup::RunNote& now,
                       const model::CausalLmImpl& model, const setup::Launch& launch,
                       sherd::World& world, const track::Say& say) {
  const std::string text = setup::from_rank_0(
      world, [&] { return to_json(plan_of(config, now, model, launch, say)).dump(); });
  return plan_from_json(json::parse(text));
}

std::optional<std::string> likely_start(const config::RunConfig& config) {
  const setup::Checkpoints own(config.train.output);
  const auto steps = own.complete_steps();
  if (config.checkpoint.resume == "auto" && !steps.empty()) {
    return own.folder_of(steps.back()).string();
  }
  const bool is_path = config.checkpoint.resume != "auto" && config.checkpoint.resume != "never" &&
                       config.checkpoint.resume != "overwrite";
  return is_path || !steps.empty() ? std::nullopt : std::optional(std::string());
}

namespace {

bool resumes_own(const config::RunConfig& config) {
  return config.checkpoint.resume == "auto" || config.checkpoint.resume == "overwrite";
}

// Of the checkpoints that the configuration names.
std::optional<setup::RunNote> newest_named(const config::RunConfig& config) {
  const std::string& resume = config.checkpoint.resume;
  return resume == "never" ? std::nullopt
                           : newest_note(resumes_own(config)
                                             ? newest_first(setup::Checkpoints(config.train.output))
                                             : setup::checkpoints_at(resume, "checkpoint.resume"));
}

}  // namespace

std::string config_to_resume(const config::RunConfig& config, const setup::Launch& launch) {
  const std::string& resume = config.checkpoint.resume;
  const auto note = newest_named(config);
  const bool begins_anew = resume == "overwrite" && note && !is_begun_by(*note, launch);
  return note && !begins_anew ? config::to_toml(setup::config_of(
                                    *note, resumes_own(config) ? config.train.output : resume))
                              : "";
}

setup::BaseWeights known_base(const config::RunConfig& config) {
  const auto note = newest_named(config);
  return note ? note->base : setup::BaseWeights();
}

namespace {

// Only after an older one has been loaded: where none can be, as on a host that lacks the folder,
// nothing is renamed.
void set_aside(const setup::Checkpoints& own, std::vector<std::int64_t> damaged, std::int64_t start,
               const track::Say& say) {
  for (const std::int64_t step : own.steps_without_manifest(start)) {
    say(fmt::format("the checkpoint in '{}' is damaged: it has no manifest.json",
                    own.folder_of(step).string()));
    damaged.push_back(step);
  }
  own.set_aside(damaged);
}

}  // namespace

Candidate restore(const ResumePlan& plan, const config::RunConfig& config,
                  sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer,
                  const track::Say& say) {
  const setup::Checkpoints own(config.train.output);
  std::vector<std::int64_t> damaged;
  Candidate start;
  for (std::size_t i = 0; i < plan.candidates.size() && start.folder.empty(); ++i) {
    const Candidate& candidate = plan.candidates[i];
    try {
      sherd::load_checkpoint(model, optimizer, candidate.folder);
      start = candidate;
    } catch (const Error& error) {  // the same on every rank
      if (!setup::is_damage(error) || i + 1 == plan.candidates.size()) {
        throw;
      }
      say(fmt::format(
          "the checkpoint in '{}' is damaged: {}\ncontinuing from the older one in '{}'",
          candidate.folder, error.what(), plan.candidates[i + 1].folder));
      if (lies_in(candidate.folder, own.root())) {
        damaged.push_back(candidate.step);
      }
    }
  }
  setup::on_rank_0(model.world(), [&] { set_aside(own, damaged, start.step, say); });
  return start;
}

}  // namespace llm::train
