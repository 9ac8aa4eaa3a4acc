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
#include "llm/train/data_preview.h"
#include "llm/train/deterministic.h"
#include "llm/train/device.h"
#include "llm/train/disk_rate.h"
#include "llm/train/export_run.h"
#include "llm/train/free_space.h"
#include "llm/train/load_model.h"
#include "llm/train/model_identity.h"
#include "llm/train/options_of_config.h"
#include "llm/train/out_of_memory.h"
#include "llm/train/output_folder.h"
#include "llm/train/peak_memory.h"
#include "llm/train/run.h"
#include "llm/train/run_text.h"
#include "llm/train/training_loop.h"
#include "sherd/checkpoint.h"

namespace llm::train {

namespace {

// On rank 0; null on the others. Writing is tried here, so that no run fails to save after hours.
std::shared_ptr<OutputLock> lock_output(const config::RunConfig& config, sherd::World& world,
                                        const RunHooks& hooks, const Say& say) {
  std::shared_ptr<OutputLock> lock;
  on_all_ranks(world, [&] {
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

void write_plan(Run& run, const std::optional<MeasuredMemory>& measured = std::nullopt) {
  const std::string& output = run.config().train.output;
  on_all_ranks(run.world, [&] {
    if (run.plan) {
      if_there_is_room("plan.json", run.hooks.say, [&] {
        sherd::files::write_file(plan_path(output), to_json(*run.plan, measured) + "\n");
      });
    }
  });
}

// What the allocator has taken it keeps, so that the end of a run shows what was needed; of a GPU
// without what its driver takes.
MeasuredMemory measured_memory(Run& run) {
  MeasuredMemory measured;
  const c10::Device device = run.world.device();
  const std::int64_t before = run.plan && device.is_cpu() ? run.plan->constant_bytes : 0;
  for (const std::string& bytes : run.world.all_gather(std::to_string(held_bytes_on(device)))) {
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

// The end of this call of the run: its line in the log, and the summary. On rank 0.
void record_end(Run& run, track::End how, const std::string& why, const Say& say) {
  run.log->write_end(run.outcome.steps_done, how, why);
  run.log->sync();
  write_summary(run.config(), how, run.log->missing_records(), say);
}

void record_end_together(Run& run, track::End how) {
  on_rank_0(run.world, [&] { record_end(run, how, "", run.hooks.say); });
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
  on_all_ranks(world, [&] { static_cast<void>(batch_shape(asked.train, world.size())); });
  return asked;
}

// On rank 0, after all that ranks do together: nobody waits for a tracker but this process.
void end_tracking(Run& run, track::End how) {
  if (!run.trackers) {
    return;
  }
  {
    const track::Working waiting(run.progress, "waiting for trackers");
    run.trackers->end(how);
  }
  for (const std::string& line : run.trackers->take_news()) {
    run.progress->say(line);
  }
}

RunNote note_of(const RunInputs& inputs, sherd::World& world) {
  RunNote note = note_of_run(inputs.config, inputs.data.identity, inputs.data.length.total_steps);
  note.model_values = model_identity(inputs.model.config, inputs.tokenizer);
  note.isa = path_of(world);
  if (inputs.data.learns_conversations()) {
    note.chat_template = read_on_all_ranks(world, [&] {  // a file, which may be gone on one rank
      return chat_template_text(inputs.config.data, inputs.tokenizer);
    });
  }
  return note;
}

// Where the run begins, whether it fits, and what it will take.
void decide_start(Run& run) {
  const RunInputs& inputs = run.inputs;
  const Say& say = run.hooks.say;
  run.note = note_of(inputs, run.world);
  run.resume =
      plan_resume(inputs.config, run.note, *inputs.model.shapes, run.hooks.launch, run.world, say);
  run.note.origin = run.resume.origin;
  run.note.overwritten_by = run.resume.overwritten_by;
  const auto& candidates = run.resume.candidates;
  run.hooks.begins_at(candidates.empty() ? "" : candidates.front().folder);
  require_room(inputs.config, inputs.model, inputs.data.length, run.world, say);
  on_rank_0(run.world, [&] {
    const auto seconds =
        expected_save_seconds(inputs.config.train.output,
                              checkpoint_bytes(inputs.model.parameters, inputs.config.precision));
    run.hooks.save_takes(seconds.value_or(0));
    write_bad_samples(inputs.config.train.output, inputs.data.skipped, say);
  });
  const track::Working working(run.progress, "planning memory");
  on_rank_0(run.world, [&] {
    const sherd::WorkPhase planning(run.world, "planning memory", kLongestSilence);
    run.plan = plan_run(inputs.config, inputs.model, hosts_of(run.world),
                        planned_batches(inputs.data, inputs.config, inputs.shape));
    say(planned_line(*run.plan));
  });
}

// What is said of a model in its place.
void tell_model(Run& run) {
  const config::RunConfig& config = run.config();
  const Say& say = run.hooks.say;
  if (run.world.size() > 1) {
    say("exchange between ranks: " + run.world.transport());
    if (gpu_of(run.world) != nullptr) {
      say(gpus_line(run.world.size(), run.world.local_size(), config.parallel));
    }
  }
  if (const std::string transfers = run.model->offload_transfers(); !transfers.empty()) {
    say(offload_line(config, run.model->memory().offloaded_bytes(), transfers));
    // Beside that, which may be on the same disk.
    require_room_on_disk(config, run.inputs.model, run.inputs.data.length, run.world);
  }
  if (config.memory.offload.any_on_host()) {
    say(host_line(config.memory.offload, run.model->memory().on_host_bytes()));
  }
}

// Goes on from a checkpoint: weights, optimizer, scale of the loss, skipped steps.
void restore_run(Run& run) {
  if (run.resume.overwrite) {
    on_rank_0(run.world, [&] { Checkpoints(run.config().train.output).remove_all(); });
  }
  run.start = restore(run.resume, run.config(), *run.model, *run.optimizer, run.hooks.say);
  if (run.start.folder.empty()) {
    return;
  }
  run.hooks.say(resumed_lines(run.start, run.inputs.data.length.total_steps));
  const RunNote then = note_from_text(
      from_rank_0(run.world,
                  [&] { return sherd::CheckpointManifest::read(run.start.folder).note; }),
      run.start.folder);
  if (run.scaler && then.loss_scale > 0) {
    run.scaler->set_scale(then.loss_scale);
    run.scaler->set_good_steps(then.good_steps);
  }
  run.note.skipped_steps = then.skipped_steps;
}

// Model and optimizer, from the model's weights or a checkpoint.
void build_model(Run& run) {
  const track::Working loading(run.progress, "loading the model");
  const config::RunConfig& config = run.config();
  const ModelShape& shape = run.inputs.model;
  run.model.emplace(run.resume.candidates.empty() ? load_model(config, shape, run.world)
                                                  : model_to_fill(config, shape, run.world));
  run.optimizer.emplace(*run.model, adamw_options(config.optim),
                        adamw_groups(config.optim, *shape.shapes), adamw_mode(config.precision));
  if (scales_loss(config.precision)) {
    run.scaler.emplace(*run.model);
  }
  tell_model(run);
  restore_run(run);
}

// Trackers, and the log: a resumed run keeps its lines up to the start.
void open_log(Run& run) {
  on_rank_0(run.world, [&] {
    run.trackers = std::make_unique<track::Trackers>(run.config());
    run.mfu = flops_utilization(run.config(), run.inputs.model, run.world);
    if (run.mfu.peak) {
      run.hooks.say(run.mfu.line());
    }
    std::vector<std::string> eval_paths;
    for (const config::DataSet& set : run.config().data.eval) {
      eval_paths.push_back(set.path);
    }
    run.log = std::make_unique<RunLog>(log_path(run.config()).string(), run.start.step,
                                       *run.trackers, eval_paths, run.hooks.warn);
  });
}

// All steps, and what comes after the last as long as nobody asks for a stop.
void steps_and_results(Run& run, TrainingLoop& loop) {
  if (!loop.take_steps()) {
    if (run.outcome.steps_done > 0) {
      record_end_together(run, track::End::Stopped);
    }
    return;
  }
  if (run.outcome.steps_done > run.start.step) {
    write_plan(run, measured_memory(run));
  }
  record_end_together(run, track::End::Finished);
  const track::Working exporting(run.progress, "exporting");
  run.outcome.stopped =
      !export_run(run.config(), run.outcome.checkpoint, loop.best(), run.world, run.hooks);
}

// Records the end of a run that does not end together with the other ranks, as far as that is
// possible: the failure itself is what counts.
void end_alone(Run& run, track::End how, const std::string& why) {
  if (run.progress == nullptr) {
    return;
  }
  run.hooks.failing();
  try {
    record_end(run, how, why, [&](const std::string& line) { run.progress->say(line); });
  } catch (const std::exception&) {
    // A full disk, perhaps, of which the run has failed.
  }
  end_tracking(run, how);
}

// The request may have reached another rank.
bool is_of_a_stop(const Run& run, const sherd::Error& error) {
  const bool writes =
      error.code() == sherd::ExitCode::CannotWrite || error.code() == sherd::ExitCode::StorageIo;
  return (run.hooks.stop_requested() || run.outcome.stopped) && (error.is_of_peers() || writes);
}

// A run that was asked to stop ends otherwise than with a save by all ranks: their peers have left
// or hang, or the checkpoint cannot be written. Returns if nothing is lost.
void fail_to_stop(Run& run, const sherd::Error& error) {
  end_alone(run, track::End::Stopped, error.what());
  const std::string lost = run.hooks.unsaved->text();
  if (lost.empty() && error.is_of_peers()) {
    run.outcome.stopped = true;
    return;
  }
  if (lost.empty() || dynamic_cast<const ReportedElsewhere*>(&error) != nullptr) {
    throw;
  }
  throw sherd::Error(
      error.is_of_peers() ? sherd::ExitCode::StorageIo : error.code(),
      fmt::format("asked to stop, and {} could not be saved and are lost: {}", lost, error.what()));
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

void end_together(Run& run) {
  if (!run.outcome.stopped) {
    run.hooks.say(next_lines(run.config(), run.outcome.checkpoint));
    if (!run.outcome.warning.empty()) {
      run.hooks.say(run.outcome.warning);
    }
  }
  end_tracking(run, run.outcome.stopped ? track::End::Stopped : track::End::Finished);
  if (run.outcome.stopped) {
    // They leave with 75, at which a launcher may end a rank that is behind.
    wait_for_others(run.world);
  }
}

void carry_out(Run& run, TrainingLoop& loop) {
  try {
    steps_and_results(run, loop);
  } catch (const sherd::Error& error) {
    if (is_of_a_stop(run, error)) {
      return fail_to_stop(run, error);
    }
    end_alone(run, track::End::Failed, error.what());
    throw;
  } catch (const std::exception& error) {
    end_alone(run, track::End::Failed, error.what());
    throw;
  }
  end_together(run);
}

}  // namespace

RunOutcome run(const config::RunConfig& given, sherd::World world, const RunHooks& of_caller) {
  const auto progress = progress_of(world, of_caller);
  const RunHooks hooks = told_by(progress.get(), of_caller);
  auto starting = std::make_unique<track::Working>(progress.get(), "starting");
  const config::RunConfig asked = agreed(given, world, hooks.launch, hooks.say);
  const DeterministicAlgorithms repeated_bits(asked.train.deterministic, world.device());
  auto lock = lock_output(asked, world, hooks, hooks.say);
  Run run{world, hooks, progress.get(), std::move(lock),
          open_inputs(asked, world, hooks.say, progress.get())};
  on_rank_0(world, [&] { hooks.say(example_lines(run.inputs)); });
  hooks.say(steps_line(run.inputs.data.length, run.inputs.shape));
  decide_start(run);
  with_memory_advice(run.inputs, world, [&] {
    build_model(run);
    open_log(run);
    TrainingLoop loop(run);
    if (!loop.is_over()) {
      write_plan(run);
    }
    world.barrier();
    on_all_ranks(world, hooks.prepared);
    starting.reset();
    carry_out(run, loop);
  });
  return run.outcome;
}

bool dry_run(const config::RunConfig& given, sherd::World world, const RunHooks& hooks) {
  const auto progress = progress_of(world, hooks);
  const Say say = told_by(progress.get(), hooks).say;
  const track::Working working(progress.get(), "planning");
  const RunInputs inputs =
      open_inputs(agreed(given, world, hooks.launch, say), world, say, progress.get());
  const ResumePlan begin = plan_resume(inputs.config, note_of(inputs, world), *inputs.model.shapes,
                                       hooks.launch, world, say);
  const std::string fits = from_rank_0(world, [&] {
    try_planned_output(inputs.config);
    say("configuration:\n" + config::to_toml(inputs.config));
    say(steps_line(inputs.data.length, inputs.shape));
    say(begin.candidates.empty() ? "begins at the first step"
                                 : goes_on_lines(begin.candidates.front()));
    const RunPlan plan = plan_run(inputs.config, inputs.model, hosts_of(world),
                                  planned_batches(inputs.data, inputs.config, inputs.shape));
    say(to_text(plan));
    return std::string(plan.fits() ? "fits" : "");
  });
  return !fits.empty();
}

}  // namespace llm::train
