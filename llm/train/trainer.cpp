#include "llm/train/trainer.h"

#include <algorithm>
#include <array>
#include <memory>

#include "llm/track/step_record.h"
#include "llm/train/agreement.h"
#include "llm/train/checkpoints.h"
#include "llm/train/free_space.h"
#include "llm/train/load_model.h"
#include "llm/train/options_of_config.h"
#include "llm/train/output_folder.h"
#include "llm/train/output_lock.h"
#include "llm/train/peak_memory.h"
#include "llm/train/resume.h"
#include "llm/train/run_data.h"
#include "llm/train/run_note.h"
#include "llm/train/run_text.h"
#include "llm/train/training_loop.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/isa_agreement.h"

namespace llm::train {

namespace {

// What may differ from host to host: places of files whose content is compared, and threads.
constexpr std::array kMayDiffer = {"model.path", "data.train",    "data.eval",
                                   "data.cache", "train.threads", "log.jsonl"};

void agree_on_configuration(const config::RunConfig& config, sherd::World& world) {
  Settings settings;
  for (const auto& setting : config::key_values(config)) {
    if (std::find(kMayDiffer.begin(), kMayDiffer.end(), setting.first) == kMayDiffer.end()) {
      settings.push_back(setting);
    }
  }
  require_agreement(world, settings);
}

// On rank 0; the others have none. Tried, so that no run finds out after hours that it cannot save.
std::shared_ptr<OutputLock> lock_output(const config::RunConfig& config, sherd::World& world,
                                        const RunHooks& hooks, const Say& say) {
  std::shared_ptr<OutputLock> lock;
  together(world, [&] {
    if (world.rank() == 0) {
      lock = std::make_shared<OutputLock>(config.train.output);
      try_output(config);
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
  return lock;
}

// Whether model and checkpoints have room, before any of it is taken.
void require_room(const config::RunConfig& config, const ModelShape& shape, sherd::World& world,
                  const Say& say) {
  together(world, [&] {
    if (world.rank() == 0 && (config.checkpoint.at_end || config.checkpoint.every_steps > 0)) {
      require_free_space(config.train.output, checkpoint_bytes(shape.parameters, config.memory));
    }
    const int ranks = world.local_size();
    const std::int64_t bytes =
        least_rank_bytes(shape.parameters, state_shards(config, world), config);
    const std::int64_t available = available_memory_bytes(ranks);
    say(memory_line(bytes, available));
    require_memory(bytes, ranks, available);
  });
}

void say_planned_peak(const sherd::Sharded<model::CausalLm>& model, const data::BatchShape& shape,
                      const Say& say) {
  const auto micro_batches = static_cast<int>(shape.micro_batches(shape.global_batch));
  say("memory: planned peak " +
      track::short_bytes(model.planned_peak_bytes({.count = micro_batches})) +
      " a rank, beside activations and the program itself");
}

Candidate resume(const ResumePlan& plan, const config::RunConfig& config, const RunData& data,
                 sherd::Sharded<model::CausalLm>& model, sherd::AdamW& optimizer, const Say& say) {
  if (plan.overwrite && model.world().rank() == 0) {
    Checkpoints(config.train.output).remove_all();
  }
  Candidate start = restore(plan, config, model, optimizer, say);
  const std::int64_t total = data.length.total_steps;
  if (!start.folder.empty()) {
    say("resumed from " + start.folder + ", step " + std::to_string(start.step) + " of " +
        std::to_string(total) + (start.step >= total ? ": no step is left to do" : ""));
  }
  return start;
}

}  // namespace

RunOutcome run(const config::RunConfig& config, sherd::World world, const RunHooks& hooks) {
  const Say say = [&](const std::string& line) {
    if (world.rank() == 0) {
      hooks.say(line);
    }
  };
  agree_on_configuration(config, world);
  if (const std::string notice = sherd::ops::cpu::agree_on_isa(world); !notice.empty()) {
    say(notice);
  }
  const auto batch = read_together(world, [&] { return batch_shape(config.train, world.size()); });
  const std::shared_ptr<OutputLock> lock = lock_output(config, world, hooks, say);

  const std::string& folder = config.model.path;
  const auto tokenizer = read_together(world, [&] { return load_tokenizer(folder); });
  const auto shape = read_together(world, [&] { return model_shape(folder); });
  say(model_line(config, shape));
  const RunData data = load_run_data(config, tokenizer, *shape.shapes, world, say);
  say(steps_line(data.length, batch));
  RunNote note = note_of_run(config, data.identity, data.length.total_steps);
  note.isa = sherd::ops::cpu::isa_name();
  const ResumePlan plan = plan_resume(config, note, *shape.shapes, world, say);
  note.origin = plan.origin;
  require_room(config, shape, world, say);

  sherd::Sharded<model::CausalLm> model = load_model(config, shape, world);
  sherd::AdamW optimizer(model, adamw_options(config.optim), {}, adamw_mode(config.memory));
  say_planned_peak(model, batch, say);
  const Candidate start = resume(plan, config, data, model, optimizer, say);
  world.barrier();
  hooks.prepared();
  return TrainingLoop({config, data, tokenizer, batch, note, lock.get(), start}, model, optimizer,
                      hooks)
      .run();
}

}  // namespace llm::train
