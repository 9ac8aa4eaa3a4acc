#include "llm/train/start.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "llm/adapters/adapt.h"
#include "llm/adapters/peft_config.h"
#include "llm/export/export_run.h"
#include "llm/inputs/data_options.h"
#include "llm/model/quantized.h"
#include "llm/plan/free_space.h"
#include "llm/plan/plan_search.h"
#include "llm/plan/planned_batches.h"
#include "llm/setup/agreement.h"
#include "llm/setup/auto_dtype.h"
#include "llm/setup/checkpoints.h"
#include "llm/setup/device.h"
#include "llm/setup/load_data.h"
#include "llm/setup/options_of_config.h"
#include "llm/setup/peak_memory.h"
#include "llm/track/step_record.h"
#include "llm/train/graphed_micro_batches.h"
#include "llm/train/resume.h"
#include "llm/train/run_text.h"

namespace llm::train {

namespace {

config::RunConfig with_micro_batch(config::RunConfig config, const setup::ModelShape& shape,
                                   const inputs::RunData& data, sherd::World& world,
                                   const track::Say& say) {
  if (config.train.micro_batch) {
    return config;
  }
  const auto batches_of = [&](const config::RunConfig& tried) {
    return plan::planned_batches(data, tried, inputs::batch_shape(tried.train, world.size()));
  };
  const std::string chosen = setup::from_rank_0(world, [&] {
    const sherd::WorkPhase planning(world, "planning the micro-batch", setup::kLongestSilence);
    const auto fastest =
        plan::fastest_micro_batch(config, shape, plan::hosts_of(world), batches_of);
    say(plan::micro_batch_line(fastest));
    return std::to_string(fastest.value_or(1));
  });
  config.train.micro_batch = std::stoll(chosen);
  return config;
}

bool starts_from_folder(const config::RunConfig& config) {
  return config.adapter.kind != config::AdapterKind::None && !config.adapter.path.empty();
}

// Of a run that continues, the checkpoint has the adapter and the note what the folder said, which
// may be gone.
config::RunConfig with_adapter(config::RunConfig config,
                               const std::optional<config::RunConfig>& begun) {
  std::error_code ignored;
  const std::string& folder = config.adapter.path;
  if (begun && starts_from_folder(*begun) && starts_from_folder(config) &&
      (begun->adapter.path == folder || !std::filesystem::exists(folder, ignored))) {
    config.adapter = adapters::decided_by(begun->adapter, config.adapter);
    return config;
  }
  return setup::with_adapter_folder(std::move(config));
}

}  // namespace

config::RunConfig resolved(const config::RunConfig& config, sherd::World& world,
                           const setup::Launch& launch) {
  const bool chooses_dtype = config.precision.param_dtype == config::ParamDtype::Auto;
  std::string text;
  if (chooses_dtype || !config.train.micro_batch || starts_from_folder(config)) {
    text = setup::from_rank_0(world, [&] { return config_to_resume(config, launch); });
  }
  const auto begun = text.empty() ? std::nullopt : std::optional(config::from_toml(text));
  config::RunConfig made =
      setup::read_on_all_ranks(world, [&] { return with_adapter(config, begun); });
  if (starts_from_folder(made) && world.size() > 1) {
    setup::require_same_adapter(world, made.adapter);
  }
  made.precision.param_dtype =
      setup::chosen_dtype(config.precision.param_dtype, setup::gpu_of(world));
  if (const sherd::Gpu* const gpu = setup::gpu_of(world)) {
    setup::require_dtype(made.precision.param_dtype, *gpu);
  }
  if (!begun) {
    return made;
  }
  if (chooses_dtype) {
    made.precision.param_dtype = begun->precision.param_dtype;
  }
  const auto& kept = begun->train.micro_batch;
  if (!made.train.micro_batch && kept && made.train.global_batch % (*kept * world.size()) == 0) {
    made.train.micro_batch = kept;
  }
  return made;
}

RunInputs open_inputs(const config::RunConfig& resolved, sherd::World& world, const track::Say& say,
                      track::Progress* progress) {
  check_graphs(resolved, world.device().is_cpu());
  const track::Working reading(progress, "reading data");
  for (const std::string& line : config::settings_without_effect(resolved, world.size())) {
    say(line);
  }
  const std::string& folder = resolved.model.path;
  auto tokenizer = setup::read_on_all_ranks(world, [&] { return setup::load_tokenizer(folder); });
  auto shape = setup::read_on_all_ranks(world, [&] { return setup::model_shape(resolved); });
  say(model_line(resolved, shape));
  if (resolved.adapter.kind != config::AdapterKind::None) {
    say(adapters::adapter_line(*shape.shapes, resolved.adapter));
  }
  if (const std::string& dropout = shape.config.dropout; !dropout.empty()) {
    say(fmt::format("config.json asks for dropout ({}); Sherd trains without it", dropout));
  }
  if (const auto remark = setup::rope_remark(shape, resolved.data.max_length.value_or(0));
      !remark.empty()) {
    say(remark);
  }
  inputs::RunData data = setup::load_run_data(resolved, tokenizer, shape, world, say, progress);
  config::RunConfig config = track::with_progress(progress, "planning the micro-batch", [&] {
    return with_micro_batch(inputs::with_formats(resolved, data), shape, data, world, say);
  });
  const inputs::BatchShape batch = inputs::batch_shape(config.train, world.size());
  return {{std::move(config), std::move(tokenizer), std::move(data), batch}, std::move(shape)};
}

namespace {

void require_room_on_own_disk(const config::RunConfig& config, const setup::ModelShape& shape,
                              const inputs::RunLength& length) {
  const config::CheckpointSection& policy = config.checkpoint;
  const std::int64_t exported = exports::export_bytes(config, shape);
  if (exported == 0 && !policy.at_end && policy.every == config::Every{}) {
    return;
  }
  const std::int64_t count = plan::most_checkpoints(policy, length);
  const std::int64_t each = plan::checkpoint_bytes(shape.trained, config.precision);
  const std::int64_t there = setup::Checkpoints(config.train.output).bytes();
  const std::string what = fmt::format(
      "a checkpoint of this model takes {}; this run keeps {} on its disk at once{}{}, and needs",
      track::short_bytes(each), count == 1 ? "one" : fmt::format("up to {} of them", count),
      exported > 0 ? ", and an export of " + track::short_bytes(exported) : "",
      there > 0 ? ", of which " + track::short_bytes(there) + " are there" : "");
  plan::require_free_space(config.train.output,
                           std::max<std::int64_t>(0, count * each - there) + exported, what);
}

}  // namespace

void require_room_on_disk(const config::RunConfig& config, const setup::ModelShape& shape,
                          const inputs::RunLength& length, sherd::World& world) {
  setup::on_all_ranks(world, [&] {
    if (world.rank() == 0) {
      require_room_on_own_disk(config, shape, length);
    }
  });
}

void require_room(const config::RunConfig& config, const setup::ModelShape& shape,
                  const inputs::RunLength& length, sherd::World& world, const track::Say& say) {
  require_room_on_disk(config, shape, length, world);
  setup::on_all_ranks(world, [&] {
    const int ranks = world.local_size();
    const std::int64_t bytes = plan::least_rank_bytes(
        {shape.parameters, shape.trained, model::quantized_numbers(*shape.shapes)},
        setup::state_shards(config, world), config);
    const sherd::Gpu* const gpu = setup::gpu_of(world);
    const std::int64_t available =
        gpu != nullptr ? gpu->memory_bytes * ranks : setup::available_memory_bytes(ranks);
    say(memory_line(bytes, available));
    plan::require_memory(bytes, ranks, available);
  });
}

}  // namespace llm::train
