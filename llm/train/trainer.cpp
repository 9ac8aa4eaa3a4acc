#include "llm/train/trainer.h"

#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "files/output.h"
#include "llm/runs/run_summary.h"
#include "llm/text/chat_encoder.h"
#include "llm/track/progress.h"
#include "llm/track/trackers.h"
#include "llm/train/agreement.h"
#include "llm/train/checkpoints.h"
#include "llm/train/data_preview.h"
#include "llm/train/deterministic.h"
#include "llm/train/device.h"
#include "llm/train/disk_rate.h"
#include "llm/train/export_run.h"
#include "llm/train/flops_utilization.h"
#include "llm/train/free_space.h"
#include "llm/train/load_model.h"
#include "llm/train/model_identity.h"
#include "llm/train/options_of_config.h"
#include "llm/train/out_of_memory.h"
#include "llm/train/output_folder.h"
#include "llm/train/output_lock.h"
#include "llm/train/peak_memory.h"
#include "llm/train/resume.h"
#include "llm/train/run_data.h"
#include "llm/train/run_note.h"
#include "llm/train/run_plan.h"
#include "llm/train/run_text.h"
#include "llm/train/start.h"
#include "llm/train/training_loop.h"
#include "sherd/checkpoint.h"

namespace llm::train {

namespace {

// On rank 0; null on the others. Writing is tried here, so that no run fails to save after hours.
std::shared_ptr<OutputLock> lock_output(const config::RunConfig& config, sherd::World& world,
                                        const RunHooks& hooks, const Say& say) {
  std::shared_ptr<OutputLock> lock;
  together(world, [&] {
    if (world.rank() == 0) {
      OutputLock::OtherHosts hosts;
      hosts.say = say;
      const sherd::WorkPhase phase(world, "locking the output folder", 2 * hosts.lease);
      lock = std::make_shared<OutputLock>(config.train.output, hosts);
      try_output(config);
      remove_temporary_files(config.train.output);
      require_place_of_export(config);
      static_cast<void>(track::Trackers(config));  // whether they can begin
      if (!lock->warning().empty()) {
        say(lock->warning());
      }
      hooks.before_an_end_at_once([held = std::weak_ptr(lock)] {
        if (const auto still_held = held.lock()) {
          still_held->remove();
        }
      });
    }
  });
  require_one_output(config, world);
  return lock;
}

// On rank 0; nothing on the others.
std::optional<RunPlan> plan_memory(const config::RunConfig& config, const ModelShape& shape,
                                   const RunData& data, const data::BatchShape& batch,
                                   sherd::World& world, const Say& say) {
  std::optional<RunPlan> plan;
  on_first_rank(world, [&] {
    const sherd::WorkPhase planning(world, "planning memory", kLongestSilence);
    plan = plan_run(config, shape, hosts_of(world), planned_batches(data, config, batch));
    say(planned_line(*plan));
  });
  return plan;
}

void write_plan(const std::optional<RunPlan>& plan, const std::string& output, sherd::World& world,
                const Say& say, const std::optional<MeasuredMemory>& measured = std::nullopt) {
  together(world, [&] {
    if (plan) {
      if_there_is_room("plan.json", say, [&] {
        sherd::files::write_file(plan_path(output), to_json(*plan, measured) + "\n");
      });
    }
  });
}

// What the allocator has taken it keeps, so that the end of a run shows what was needed; of a GPU
// without what its driver takes.
MeasuredMemory measured_memory(const std::optional<RunPlan>& plan, sherd::World& world) {
  MeasuredMemory measured;
  const std::int64_t before = plan && world.device().is_cpu() ? plan->constant_bytes : 0;
  for (const std::string& bytes : world.all_gather(std::to_string(held_bytes_on(world.device())))) {
    measured.rank_peak_bytes.push_back(std::stoll(bytes) - before);
  }
  return measured;
}

// Of all sessions of the run, from its log, where that is a file. On rank 0.
void write_summary(const config::RunConfig& config, track::End how, std::int64_t lost_records,
                   const Say& say) {
  if (std::filesystem::is_regular_file(log_path(config))) {
    runs::RunSummary summary = runs::summary_of(std::filesystem::path(config.train.output));
    summary.ended = how;
    summary.lost_records = lost_records;
    say("summary: " + to_line(summary));
    if_there_is_room("summary.json", say, [&] {
      sherd::files::write_file(summary_path(config.train.output), to_json(summary) + "\n");
    });
  }
}

// The end of a session: its line in the log, and the summary. On rank 0.
void record_end(TrainingLoop& loop, const config::RunConfig& config, track::End how,
                const std::string& why, const Say& say) {
  loop.record_end(how, why);
  write_summary(config, how, loop.missing_records(), say);
}

Candidate resume(const ResumePlan& plan, const config::RunConfig& config, const RunData& data,
                 sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer, const Say& say) {
  if (plan.overwrite) {
    on_first_rank(model.world(), [&] { Checkpoints(config.train.output).remove_all(); });
  }
  Candidate start = restore(plan, config, model, optimizer, say);
  if (!start.folder.empty()) {
    say(resumed_lines(start, data.length.total_steps));
  }
  return start;
}

// Of the checkpoint that the run begins at; of none a note without anything to continue with.
RunNote note_at(const Candidate& start, sherd::World& world) {
  if (start.folder.empty()) {
    return {};
  }
  return note_from_text(
      from_first_rank(world, [&] { return sherd::CheckpointManifest::read(start.folder).note; }),
      start.folder);
}

// Continues with the scale of the loss that the checkpoint holds.
void restore_scale(const RunNote& then, std::optional<sherd::GradScaler>& scaler) {
  if (scaler && then.loss_scale > 0) {
    scaler->set_scale(then.loss_scale);
    scaler->set_good_steps(then.good_steps);
  }
}

// On rank 0; null on others, which say nothing.
std::unique_ptr<track::Progress> progress_of(const sherd::World& world, const RunHooks& hooks) {
  return world.rank() == 0 ? std::make_unique<track::Progress>(track::Output{hooks.say, hooks.show})
                           : nullptr;
}

// The same hooks, whose lines pass through `progress`.
RunHooks told_by(track::Progress* progress, RunHooks hooks) {
  hooks.say = [progress](const std::string& line) {
    if (progress != nullptr) {
      progress->say(line);
    }
  };
  if (!hooks.warn) {
    hooks.warn = hooks.say;
  } else if (progress != nullptr) {
    hooks.warn = [progress, warn = hooks.warn](const std::string& line) {
      progress->aside([&] { warn(line); });
    };
  }
  return hooks;
}

// The configuration that all ranks were given, with its choices made.
config::RunConfig agreed(const config::RunConfig& given, sherd::World& world, const Launch& launch,
                         const Say& say) {
  if (const std::string notice = agree_on_start(world, config::settings_in_common(given));
      !notice.empty()) {
    say(notice);
  }
  config::RunConfig asked = resolved(given, world, launch);
  together(world, [&] { static_cast<void>(batch_shape(asked.train, world.size())); });
  return asked;
}

// On rank 0, after all that ranks do together: nobody waits for a tracker but this process.
void end_tracking(track::Trackers* trackers, track::End how, track::Progress* progress) {
  if (trackers == nullptr) {
    return;
  }
  {
    const track::Working waiting(progress, "waiting for trackers");
    trackers->end(how);
  }
  for (const std::string& line : trackers->take_news()) {
    progress->say(line);
  }
}

// Says what it is a share of.
FlopsUtilization told_utilization(const config::RunConfig& config, const ModelShape& shape,
                                  const sherd::World& world, const Say& say) {
  FlopsUtilization mfu = flops_utilization(config, shape, world);
  if (mfu.peak) {
    say(mfu.line());
  }
  return mfu;
}

RunNote note_of(const StartedRun& run, const sherd::World& world) {
  RunNote note = note_of_run(run.config, run.data.identity, run.data.length.total_steps);
  note.model_values = model_identity(run.model.config, run.tokenizer);
  note.isa = path_of(world);
  if (learns_chat(run.config.data)) {
    note.chat_template = learned_chat_of(run.config.data, run.tokenizer)->chat_template().source();
  }
  return note;
}

}  // namespace

namespace {

// What a run needs beside its loop to come to its end.
struct Ending {
  const config::RunConfig& config;
  const std::optional<RunPlan>& plan;  // on rank 0
  std::int64_t begun_at;               // steps done before
  track::Trackers* trackers;           // on rank 0, else null
  track::Progress* progress;           // the same
  const RunHooks& hooks;
};

void record_end_together(TrainingLoop& loop, const Ending& end, track::End how,
                         sherd::World& world) {
  on_first_rank(world, [&] { record_end(loop, end.config, how, "", end.hooks.say); });
}

// All steps, and what comes after the last as long as nobody asks for a stop.
RunOutcome steps_and_results(TrainingLoop& loop, const Ending& end, sherd::World& world) {
  RunOutcome outcome = loop.run();
  if (outcome.stopped) {
    if (outcome.steps_done > 0) {
      record_end_together(loop, end, track::End::Stopped, world);
    }
    return outcome;
  }
  if (outcome.steps_done > end.begun_at) {
    write_plan(end.plan, end.config.train.output, world, end.hooks.say,
               measured_memory(end.plan, world));
  }
  record_end_together(loop, end, track::End::Finished, world);
  const track::Working exporting(end.progress, "exporting");
  outcome.stopped = !export_run(end.config, outcome.checkpoint, loop.best(), world, end.hooks);
  return outcome;
}

// Records the end of a run that does not end together with the other ranks, as far as that is
// possible: the failure itself is what counts.
void end_alone(TrainingLoop& loop, const Ending& end, track::End how, const std::string& why) {
  if (end.progress == nullptr) {
    return;
  }
  end.hooks.failing();
  try {
    record_end(loop, end.config, how, why,
               [&](const std::string& line) { end.progress->say(line); });
  } catch (const std::exception&) {
    // A full disk, perhaps, of which the run has failed.
  }
  end_tracking(end.trackers, how, end.progress);
}

// A run that was asked to stop ends otherwise than with a save by all ranks: their peers have left
// or hang, or the checkpoint cannot be written. Returns if nothing is lost.
RunOutcome failed_stop(TrainingLoop& loop, const Ending& end, const sherd::Error& error) {
  end_alone(loop, end, track::End::Stopped, error.what());
  const std::string lost = end.hooks.unsaved->text();
  if (lost.empty() && error.is_of_peers()) {
    RunOutcome outcome = loop.outcome();
    outcome.stopped = true;
    return outcome;
  }
  if (lost.empty() || dynamic_cast<const ReportedElsewhere*>(&error) != nullptr) {
    throw;
  }
  throw sherd::Error(
      error.is_of_peers() ? sherd::ExitCode::StorageIo : error.code(),
      fmt::format("asked to stop, and {} could not be saved and are lost: {}", lost, error.what()));
}

// The request may have reached another rank.
bool is_of_a_stop(const sherd::Error& error, const RunHooks& hooks, const RunOutcome& outcome) {
  const bool writes =
      error.code() == sherd::ExitCode::CannotWrite || error.code() == sherd::ExitCode::StorageIo;
  return (hooks.stop_requested() || outcome.stopped) && (error.is_of_peers() || writes);
}

// All is saved: that another rank was lost meanwhile costs nothing.
void wait_for_others(sherd::World& world) {
  try {
    world.barrier();
  } catch (const sherd::Error& error) {
    if (!error.is_of_peers()) {
      throw;
    }
  }
}

RunOutcome carry_out(TrainingLoop& loop, const Ending& end, sherd::World& world) {
  RunOutcome outcome;
  try {
    outcome = steps_and_results(loop, end, world);
  } catch (const sherd::Error& error) {
    if (is_of_a_stop(error, end.hooks, loop.outcome())) {
      return failed_stop(loop, end, error);
    }
    end_alone(loop, end, track::End::Failed, error.what());
    throw;
  } catch (const std::exception& error) {
    end_alone(loop, end, track::End::Failed, error.what());
    throw;
  }
  if (!outcome.stopped) {
    end.hooks.say(next_lines(end.config, outcome.checkpoint));
    if (!outcome.warning.empty()) {
      end.hooks.say(outcome.warning);
    }
  }
  end_tracking(end.trackers, outcome.stopped ? track::End::Stopped : track::End::Finished,
               end.progress);
  if (outcome.stopped) {
    wait_for_others(
        world);  // they leave with 75, at which a launcher may end a rank that is behind
  }
  return outcome;
}

}  // namespace

namespace {

// What is known of a run before its model is made.
struct PreparedRun {
  const StartedRun& started;
  const ResumePlan& resume;
  const std::optional<RunPlan>& memory;  // on rank 0
  const RunNote& note;
  OutputLock* lock;           // on rank 0, else null
  track::Progress* progress;  // the same
  const RunHooks& hooks;
};

RunOutcome train_model(const PreparedRun& run, std::unique_ptr<track::Working> starting,
                       sherd::World& world) {
  const config::RunConfig& config = run.started.config;
  const RunData& data = run.started.data;
  const ModelShape& shape = run.started.model;
  const Say& say = run.hooks.say;
  auto loading = std::make_unique<track::Working>(run.progress, "loading the model");
  sherd::Sharded<model::CausalLm> model = run.resume.candidates.empty()
                                              ? load_model(config, shape, world)
                                              : model_to_fill(config, shape, world);
  sherd::AdamW optimizer(model, adamw_options(config.optim),
                         adamw_groups(config.optim, *shape.shapes), adamw_mode(config.precision));
  std::optional<sherd::GradScaler> scaler;
  if (scales_loss(config.precision)) {
    scaler.emplace(model);
  }
  if (world.size() > 1) {
    say("exchange between ranks: " + world.transport());
    if (gpu_of(world) != nullptr) {
      say(gpus_line(world.size(), world.local_size(), config.parallel));
    }
  }
  if (const std::string transfers = model.offload_transfers(); !transfers.empty()) {
    say(offload_line(config, model.memory().offloaded_bytes(), transfers));
    require_room_on_disk(config, shape, data.length,
                         world);  // beside that, which may be on the same disk
  }
  if (config.memory.offload.any_on_host()) {
    say(host_line(config.memory.offload, model.memory().on_host_bytes()));
  }
  const Candidate start = resume(run.resume, config, data, model, optimizer, say);
  const RunNote then = note_at(start, world);
  restore_scale(then, scaler);
  RunNote note = run.note;
  note.skipped_steps = then.skipped_steps;
  loading.reset();
  std::unique_ptr<track::Trackers> trackers;  // on rank 0, as the next
  FlopsUtilization mfu;
  on_first_rank(world, [&] {
    trackers = std::make_unique<track::Trackers>(config);
    mfu = told_utilization(config, shape, world, say);
  });
  TrainingLoop loop({config, data, run.started.tokenizer, run.started.shape, std::move(note),
                     run.lock, trackers.get(), run.progress, start, mfu},
                    model, optimizer, scaler ? &*scaler : nullptr, run.hooks);
  if (!loop.is_over()) {
    write_plan(run.memory, config.train.output, world, say);
  }
  world.barrier();
  together(world, run.hooks.prepared);
  starting.reset();
  return carry_out(loop, {config, run.memory, start.step, trackers.get(), run.progress, run.hooks},
                   world);
}

}  // namespace

RunOutcome run(const config::RunConfig& given, sherd::World world, const RunHooks& of_caller) {
  const auto progress = progress_of(world, of_caller);
  const RunHooks hooks = told_by(progress.get(), of_caller);
  const Say& say = hooks.say;
  auto starting = std::make_unique<track::Working>(progress.get(), "starting");
  const config::RunConfig asked = agreed(given, world, hooks.launch, say);
  const DeterministicAlgorithms repeated_bits(asked.train.deterministic, world.device());
  const std::shared_ptr<OutputLock> lock = lock_output(asked, world, hooks, say);

  const StartedRun started = start_run(asked, world, say, progress.get());
  const config::RunConfig& config = started.config;
  const RunData& data = started.data;
  const ModelShape& shape = started.model;
  const data::BatchShape& batch = started.shape;
  on_first_rank(world, [&] { say(example_lines(started)); });
  say(steps_line(data.length, batch));
  RunNote note = note_of(started, world);
  const ResumePlan plan = plan_resume(config, note, *shape.shapes, hooks.launch, world, say);
  note.origin = plan.origin;
  note.overwritten_by = plan.overwritten_by;
  hooks.begins_at(plan.candidates.empty() ? "" : plan.candidates.front().folder);
  require_room(config, shape, data.length, world, say);
  on_first_rank(world, [&] {
    const auto seconds = expected_save_seconds(
        config.train.output, checkpoint_bytes(shape.parameters, config.precision));
    hooks.save_takes(seconds.value_or(0));
    write_bad_samples(config.train.output, data.skipped, say);
  });
  const std::optional<RunPlan> plan_of_run =
      track::with_progress(progress.get(), "planning memory",
                           [&] { return plan_memory(config, shape, data, batch, world, say); });

  RunOutcome outcome;
  with_memory_advice(started, world, [&] {
    outcome = train_model({started, plan, plan_of_run, note, lock.get(), progress.get(), hooks},
                          std::move(starting), world);
  });
  return outcome;
}

bool dry_run(const config::RunConfig& given, sherd::World world, const RunHooks& hooks) {
  const auto progress = progress_of(world, hooks);
  const Say say = told_by(progress.get(), hooks).say;
  const track::Working working(progress.get(), "planning");
  const StartedRun started =
      start_run(agreed(given, world, hooks.launch, say), world, say, progress.get());
  const ResumePlan begin = plan_resume(started.config, note_of(started, world),
                                       *started.model.shapes, hooks.launch, world, say);
  const std::string fits = from_first_rank(world, [&] {
    try_planned_output(started.config);
    say("configuration:\n" + config::to_toml(started.config));
    say(steps_line(started.data.length, started.shape));
    say(begin.candidates.empty() ? "begins at the first step"
                                 : goes_on_lines(begin.candidates.front()));
    const RunPlan plan = plan_run(started.config, started.model, hosts_of(world),
                                  planned_batches(started.data, started.config, started.shape));
    say(to_text(plan));
    return std::string(plan.fits() ? "fits" : "");
  });
  return !fits.empty();
}

}  // namespace llm::train
