#include "llm/train/trainer.h"

#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "files/output.h"
#include "llm/export/export_run.h"
#include "llm/inputs/data_options.h"
#include "llm/inputs/data_preview.h"
#include "llm/model/quantized.h"
#include "llm/plan/disk_rate.h"
#include "llm/plan/free_space.h"
#include "llm/plan/run_plan.h"
#include "llm/runs/run_summary.h"
#include "llm/setup/device.h"
#include "llm/setup/load_model.h"
#include "llm/setup/model_identity.h"
#include "llm/setup/objective.h"
#include "llm/setup/options_of_config.h"
#include "llm/setup/peak_memory.h"
#include "llm/text/chat_encoder.h"
#include "llm/track/progress.h"
#include "llm/train/deterministic.h"
#include "llm/train/out_of_memory.h"
#include "llm/train/output_folder.h"
#include "llm/train/reference_logps.h"
#include "llm/train/run.h"
#include "llm/train/run_text.h"
#include "llm/train/training_loop.h"
#include "sherd/checkpoint.h"

namespace llm::train {

namespace {

// On rank 0; null on the others. Writing is tried here, so that no run fails to save after hours.
std::shared_ptr<OutputLock> lock_output(const config::RunConfig& config, sherd::World& world,
                                        RunStatus& status, const track::Say& say) {
  std::shared_ptr<OutputLock> lock;
  setup::on_all_ranks(world, [&] {
    if (world.rank() == 0) {
      OutputLock::OtherHosts hosts;
      hosts.say = say;
      const sherd::WorkPhase phase(world, "locking the output folder", 2 * hosts.lease);
      lock = std::make_shared<OutputLock>(config.train.output, hosts);
      try_output(config);
      remove_temporary_files(config.train.output);
      exports::require_place_of_export(config);
      static_cast<void>(track::Trackers(config));  // whether they can begin
      if (!lock->warning().empty()) {
        say(lock->warning());
      }
      status.set_lock(lock);
    }
  });
  require_one_output(config, world);
  return lock;
}

void write_plan(Run& run, const std::optional<plan::MeasuredMemory>& measured = std::nullopt) {
  const std::string& output = run.config().train.output;
  setup::on_all_ranks(run.world, [&] {
    if (run.plan) {
      if_there_is_room("plan.json", run.say_now, [&] {
        sherd::files::write_file(plan::plan_path(output), to_json(*run.plan, measured) + "\n");
      });
    }
  });
}

// What the allocator has taken it keeps, so that the end of a run shows what was needed; of a GPU
// without what its driver takes, and of a processor without pages of files: with them, a run would
// seem to take less where the system has taken away some of the program's.
plan::MeasuredMemory measured_memory(Run& run) {
  plan::MeasuredMemory measured;
  const bool on_cpu = run.world.device().is_cpu();
  const std::int64_t before =
      run.plan && on_cpu ? run.plan->constant_bytes - run.plan->constant_file_bytes : 0;
  const std::int64_t held = on_cpu ? setup::resident_memory(run.world.local_size()).own_bytes
                                   : setup::held_bytes_of(run.world);
  for (const std::string& bytes : run.world.all_gather(std::to_string(held))) {
    measured.rank_peak_bytes.push_back(std::stoll(bytes) - before);
  }
  return measured;
}

// Of all sessions of the run, from its log, where that is a file. On rank 0.
void write_summary(const config::RunConfig& config, track::End how, std::int64_t lost_records,
                   const track::Say& say) {
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
void record_end(Run& run, track::End how, const std::string& why) {
  run.log->write_end(run.outcome.steps_done, how, why);
  run.log->sync();
  write_summary(run.config(), how, run.log->missing_records(), run.say_now);
}

void record_end_together(Run& run, track::End how) {
  setup::on_rank_0(run.world, [&] { record_end(run, how, ""); });
}

// On rank 0; null on others, which say nothing.
std::unique_ptr<track::Progress> progress_of(const sherd::World& world, const RunHooks& hooks) {
  return world.rank() == 0 ? std::make_unique<track::Progress>(hooks.output) : nullptr;
}

// The configuration that all ranks were given, with its choices made.
config::RunConfig agreed(const config::RunConfig& given, sherd::World& world,
                         const setup::Launch& launch, const track::Say& say) {
  if (const std::string notice = setup::agree_on_start(world, config::settings_in_common(given));
      !notice.empty()) {
    say(notice);
  }
  config::RunConfig asked = resolved(given, world, launch);
  setup::on_all_ranks(world,
                      [&] { static_cast<void>(inputs::batch_shape(asked.train, world.size())); });
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

// The weights that a run leaves as they are; none where it trains all of them. Other ranks than
// rank 0 know the digest alone. `may_read`: they are read unless an earlier run knows them.
setup::BaseWeights base_of(const RunInputs& inputs, sherd::World& world, bool may_read) {
  setup::BaseWeights base;
  if (inputs.model.trained == inputs.model.parameters) {
    return base;
  }
  base.sha256 = setup::from_rank_0(world, [&] {
    const std::string& folder = inputs.config.model.path;
    const sherd::WorkPhase reading(world, "reading the base " + folder, setup::kLongestSilence);
    const setup::BaseWeights known = known_base(inputs.config);
    if (may_read || !known.empty()) {
      base = setup::base_weights(folder, known);
    }
    return base.sha256;
  });
  return base;
}

setup::RunNote note_of(const RunInputs& inputs, sherd::World& world, bool may_read_base) {
  setup::RunNote note =
      setup::note_of_run(inputs.config, inputs.data.identity, inputs.data.length.total_steps);
  note.model_values = setup::model_identity(inputs.model.config, inputs.tokenizer);
  note.base = base_of(inputs, world, may_read_base);
  note.isa = setup::path_of(world);
  if (inputs.data.learns_conversations()) {
    note.chat_template =
        setup::read_on_all_ranks(world, [&] {  // a file, which may be gone on one rank
          return inputs::chat_template_text(inputs.config.data, inputs.tokenizer);
        });
  }
  return note;
}

// Where the run begins, whether it fits, and what it will take.
void decide_start(Run& run) {
  const RunInputs& inputs = run.inputs;
  const track::Say& say = run.say_now;
  run.note = track::with_progress(run.progress, "reading the base", [&] {
    return note_of(inputs, run.world, /*may_read_base=*/true);
  });
  run.resume =
      plan_resume(inputs.config, run.note, *inputs.model.shapes, run.hooks.launch, run.world, say);
  run.note.origin = run.resume.origin;
  run.note.overwritten_by = run.resume.overwritten_by;
  const auto& candidates = run.resume.candidates;
  run.hooks.status->set_start(candidates.empty() ? "" : candidates.front().folder);
  require_room(inputs.config, inputs.model, inputs.data.length, run.world, say);
  setup::on_rank_0(run.world, [&] {
    const auto seconds = plan::expected_save_seconds(
        inputs.config.train.output,
        plan::checkpoint_bytes(inputs.model.trained, inputs.config.precision));
    run.hooks.save_takes(seconds.value_or(0));
    write_bad_samples(inputs.config.train.output, inputs.data.skipped, say);
  });
  const track::Working working(run.progress, "planning memory");
  setup::on_rank_0(run.world, [&] {
    const sherd::WorkPhase planning(run.world, "planning memory", setup::kLongestSilence);
    run.plan = plan::plan_run(inputs.config, inputs.model, plan::hosts_of(run.world),
                              plan::planned_batches(inputs.data, inputs.config, inputs.shape));
    say(plan::planned_line(*run.plan));
  });
}

// What is said of a model in its place.
void tell_model(Run& run) {
  const config::RunConfig& config = run.config();
  const track::Say& say = run.say_now;
  if (config.model.quantize != config::Quantize::None) {
    if (const std::string line = model::unquantized_line(*run.inputs.model.shapes); !line.empty()) {
      say(line);
    }
  }
  if (run.world.size() > 1) {
    say("exchange between ranks: " + run.world.transport());
    if (setup::gpu_of(run.world) != nullptr) {
      say(setup::gpus_line(run.world.size(), run.world.local_size(), config.parallel));
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
    setup::on_rank_0(run.world,
                     [&] { setup::Checkpoints(run.config().train.output).remove_all(); });
  }
  run.start = restore(run.resume, run.config(), *run.model, *run.optimizer, run.say_now);
  if (run.start.folder.empty()) {
    return;
  }
  run.say_now(resumed_lines(run.start, run.inputs.data.length.total_steps));
  const setup::RunNote then = setup::note_from_text(
      setup::from_rank_0(run.world,
                         [&] { return sherd::CheckpointManifest::read(run.start.folder).note; }),
      run.start.folder);
  if (run.scaler && then.loss_scale > 0) {
    run.scaler->set_scale(then.loss_scale);
    run.scaler->set_good_steps(then.good_steps);
  }
  run.note.skipped_steps = then.skipped_steps;
}

// Of the checkpoint that the run continues from. None at the first step, and of older versions.
setup::ReferenceKey begun_reference(Run& run) {
  if (run.resume.candidates.empty()) {
    return {};
  }
  const std::string& folder = run.resume.candidates.front().folder;
  const std::string note =
      setup::from_rank_0(run.world, [&] { return sherd::CheckpointManifest::read(folder).note; });
  return setup::note_from_text(note, folder).reference;
}

// Model and optimizer, from the model's weights, a checkpoint, or both. False: stopped before.
bool build_model(Run& run) {
  const track::Working loading(run.progress, "loading the model");
  const config::RunConfig& config = run.config();
  const setup::ModelShape& shape = run.inputs.model;
  std::optional<ReferenceLogps> reference;
  if (run.objective != nullptr && run.objective->needs_reference() &&
      !setup::reference_is_base(config)) {
    reference.emplace(run.inputs, run.world, run.note, begun_reference(run));
    run.note.reference = reference->key();
  }
  const bool has_reference = !reference || reference->is_complete();
  const bool is_filled = !run.resume.candidates.empty() && run.note.base.empty() && has_reference;
  const auto adapter = run.resume.candidates.empty() || !has_reference
                           ? setup::AdapterValues::OfRun
                           : setup::AdapterValues::Unset;
  run.model.emplace(is_filled ? setup::model_to_fill(config, shape, run.world)
                              : setup::load_model(config, shape, run.world, adapter));
  if (reference) {
    if (!reference->complete(*run.model, run.hooks, run.progress)) {
      return false;
    }
    reference->give();
  }
  run.optimizer.emplace(*run.model, setup::adamw_options(config.optim),
                        setup::adamw_groups(config.optim, *shape.shapes),
                        setup::adamw_mode(config.precision));
  if (setup::scales_loss(config.precision)) {
    run.scaler.emplace(*run.model);
  }
  tell_model(run);
  restore_run(run);
  return true;
}

// Trackers, and the log: a resumed run keeps its lines up to the start.
void open_log(Run& run) {
  setup::on_rank_0(run.world, [&] {
    run.trackers = std::make_unique<track::Trackers>(run.config());
    run.mfu = flops_utilization(run.config(), run.inputs.model, run.world);
    if (run.mfu.peak) {
      run.say_now(run.mfu.line());
    }
    std::vector<std::string> eval_paths;
    for (const config::DataSet& set : run.config().data.eval) {
      eval_paths.push_back(set.path);
    }
    run.log = std::make_unique<RunLog>(
        log_path(run.config()).string(), run.start.step, *run.trackers, eval_paths,
        [progress = run.progress](const std::string& line) { progress->warn(line); });
  });
}

// What a run leaves after its last step.
void leave_results(Run& run, const TrainingLoop& loop) {
  if (run.outcome.steps_done > run.start.step) {
    write_plan(run, measured_memory(run));
  }
  record_end_together(run, track::End::Finished);
  const track::Working exporting(run.progress, "exporting");
  run.outcome.stopped = !exports::export_run(run.config(), run.outcome.checkpoint, loop.best(),
                                             run.world, run.hooks.stop_requested, run.say_now);
}

// Records the end of a run that does not end together with the other ranks, as far as that is
// possible: the failure itself is what counts.
void end_alone(Run& run, track::End how, const std::string& why) {
  if (run.progress == nullptr) {
    return;
  }
  run.hooks.failing();
  try {
    record_end(run, how, why);
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
  const std::string lost = run.hooks.status->unsaved();
  if (lost.empty() && error.is_of_peers()) {
    run.outcome.stopped = true;
    return;
  }
  if (lost.empty() || dynamic_cast<const setup::ReportedElsewhere*>(&error) != nullptr) {
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
    run.say_now(next_lines(run.config(), run.outcome.checkpoint));
    if (!run.outcome.warning.empty()) {
      run.say_now(run.outcome.warning);
    }
  }
  end_tracking(run, run.outcome.stopped ? track::End::Stopped : track::End::Finished);
  if (run.outcome.stopped) {
    // They leave with 75, at which a launcher may end a rank that is behind.
    wait_for_others(run.world);
  }
}

// Of the failure that is handled: throws it, unless a stop was asked for and nothing is lost.
void fail(Run& run, const std::exception& failure) {
  const auto* const error = dynamic_cast<const sherd::Error*>(&failure);
  if (error != nullptr && is_of_a_stop(run, *error)) {
    return fail_to_stop(run, *error);
  }
  end_alone(run, track::End::Failed, failure.what());
  throw;
}

}  // namespace

RunOutcome run(const config::RunConfig& given, sherd::World world, const RunHooks& hooks) {
  const auto progress = progress_of(world, hooks);
  const track::Say say = track::lines_to(progress.get());
  auto starting = std::make_unique<track::Working>(progress.get(), "starting");
  const config::RunConfig asked = agreed(given, world, hooks.launch, say);
  const DeterministicAlgorithms repeated_bits(asked.train.deterministic, world.device());
  auto lock = lock_output(asked, world, *hooks.status, say);
  Run run{world, hooks,           progress.get(),
          say,   std::move(lock), open_inputs(asked, world, say, progress.get())};
  run.objective = setup::objective_of(run.config());
  setup::on_rank_0(world, [&] { say(inputs::example_lines(run.inputs)); });
  say(steps_line(run.inputs.data.length, run.inputs.shape));
  decide_start(run);
  try {
    if (!build_model(run)) {
      say("stopped before the first step: the next start goes on from here");
      run.outcome.stopped = true;
      wait_for_others(world);
      return run.outcome;
    }
    open_log(run);
    TrainingLoop loop(run);
    if (!loop.is_over()) {
      write_plan(run);
    }
    world.barrier();
    hooks.status->begin_steps();
    starting.reset();
    try {
      if (loop.take_steps()) {
        leave_results(run, loop);
      } else if (run.outcome.steps_done > 0) {
        record_end_together(run, track::End::Stopped);
      }
    } catch (const std::exception& failure) {
      fail(run, failure);
      return run.outcome;
    }
    end_together(run);
  } catch (...) {
    throw_with_memory_advice(run.inputs, world);
  }
  return run.outcome;
}

bool dry_run(const config::RunConfig& given, sherd::World world, const RunHooks& hooks) {
  const auto progress = progress_of(world, hooks);
  const track::Say say = track::lines_to(progress.get());
  const track::Working working(progress.get(), "planning");
  const RunInputs inputs =
      open_inputs(agreed(given, world, hooks.launch, say), world, say, progress.get());
  const setup::RunNote note = note_of(inputs, world, /*may_read_base=*/false);
  const ResumePlan begin =
      plan_resume(inputs.config, note, *inputs.model.shapes, hooks.launch, world, say);
  const std::string fits = setup::from_rank_0(world, [&] {
    try_planned_output(inputs.config);
    say("configuration:\n" + config::to_toml(inputs.config));
    say(steps_line(inputs.data.length, inputs.shape));
    say(begin.candidates.empty() ? "begins at the first step"
                                 : goes_on_lines(begin.candidates.front()));
    const plan::RunPlan plan =
        plan::plan_run(inputs.config, inputs.model, plan::hosts_of(world),
                       plan::planned_batches(inputs.data, inputs.config, inputs.shape));
    say(to_text(plan));
    return std::string(plan.fits() ? "fits" : "");
  });
  return !fits.empty();
}

}  // namespace llm::train
