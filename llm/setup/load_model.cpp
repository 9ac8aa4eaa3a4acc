#include "llm/setup/load_model.h"

#include <algorithm>
#include <functional>
#include <string>

#include "llm/adapters/peft_weights.h"
#include "llm/inputs/run_data.h"
#include "llm/io/hf_config.h"
#include "llm/io/import.h"
#include "llm/io/quantized_weights.h"
#include "llm/model/random_weights.h"
#include "llm/setup/agreement.h"
#include "llm/setup/device.h"
#include "llm/setup/model_identity.h"
#include "llm/setup/options_of_config.h"
#include "ops/linear_cross_entropy.h"
#include "ops/q8_0.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/lora.h"
#include "sherd/state_dict.h"

namespace llm::setup {

namespace {

sherd::Sharded<model::CausalLm> load_weights_of(const std::string& folder, const sherd::Mesh& mesh,
                                                const sherd::ShardOptions& options,
                                                const io::IgnoredFields& ignored,
                                                const PrepareModule& prepare) {
  try {
    return load_sharded(folder, mesh, options, ignored, prepare);
  } catch (const ReportedElsewhere&) {
    throw;
  } catch (const sherd::Error& error) {
    if (io::has_weights(folder)) {
      throw;
    }
    throw sherd::Error(error.code(), error.what() + std::string(". To start from random weights "
                                                                "give model.init = \"random\""));
  }
}

void set_up(sherd::Sharded<model::CausalLm>& model, const config::RunConfig& config,
            const sherd::ShardOptions& options) {
  set_loss_chunk(model, options, {config.memory.loss_chunk_tokens, config.memory.loss_chunk_bytes});
  model.module()->set_attention_kernel(attention_of(config.device.attention));
  model.module()->set_longest_text(
      inputs::sample_length(config.data.max_length.value_or(0), model.module()->context_length()));
}

// The values of the adapter: those of adapter.path, else fresh ones.
void load_adapter(sherd::Sharded<model::CausalLm>& model, const config::RunConfig& config) {
  if (config.adapter.kind == config::AdapterKind::None) {
    return;
  }
  if (config.adapter.path.empty()) {
    sherd::initialize(model, static_cast<std::uint64_t>(config.train.seed),
                      [](sherd::ParameterInit& parameter) { sherd::initialize_lora(parameter); });
    return;
  }
  load_peft_adapter(model, config.adapter);
}

// How the first values of a run come into shards.
struct Loading {
  sherd::Mesh mesh;
  sherd::ShardOptions options;
  AdapterValues adapter;
};

sherd::Sharded<model::CausalLm> load_values(const config::RunConfig& config,
                                            const ModelShape& shape, const Loading& loading,
                                            const PrepareModule& prepare) {
  const auto& [mesh, options, adapter] = loading;
  auto model = config.model.init == config::Init::Random
                   ? random_sharded(shape.config, mesh, options,
                                    static_cast<std::uint64_t>(config.train.seed), prepare)
                   : load_weights_of(config.model.path, mesh, options, {config.model.ignore_fields},
                                     prepare);
  if (adapter == AdapterValues::OfRun) {
    load_adapter(model, config);
  }
  set_up(model, config, options);
  return model;
}

// A new module of this shape, on meta, as a run prepares it.
model::CausalLm prepared_module(const io::HfConfig& config, const PrepareModule& prepare) {
  return sherd::on_meta([&] {
    auto module = io::build_model(config);
    if (prepare) {
      prepare(module);
    }
    return module;
  });
}

}  // namespace

text::Tokenizer load_tokenizer(const std::string& folder) {
  io::require_model_folder(folder, {io::kConfigFile, io::kTokenizerFile});
  return text::Tokenizer::from_folder(folder);
}

ModelShape model_shape(const std::string& folder, const io::IgnoredFields& ignored,
                       const PrepareModule& prepare) {
  io::HfConfig config = io::read_model_folder_config(folder, ignored);
  auto shapes = prepared_module(config, prepare);
  std::int64_t parameters = 0, trained = 0;
  for (const at::Tensor& parameter : shapes->parameters()) {
    parameters += sherd::ops::q8_0::numbers_in(parameter);
    trained += parameter.requires_grad() ? parameter.numel() : 0;
  }
  return {std::move(config), std::move(shapes), parameters, trained};
}

ModelShape model_shape(const config::RunConfig& config) {
  return model_shape(config.model.path, {config.model.ignore_fields}, preparation_of(config));
}

std::string rope_remark(const ModelShape& shape, std::int64_t max_length) {
  const auto& rope = shape.config.shape.rope;
  return rope ? model::longrope_remark(
                    *rope, inputs::sample_length(max_length, shape.shapes->context_length()))
              : "";
}

sherd::Sharded<model::CausalLm> load_model(const config::RunConfig& config, const ModelShape& shape,
                                           const sherd::World& world, AdapterValues adapter) {
  return load_values(config, shape, {mesh_of(config, world), shard_options(config), adapter},
                     preparation_of(config));
}

sherd::Sharded<model::CausalLm> load_frozen_model(const config::RunConfig& config,
                                                  const ModelShape& shape,
                                                  const sherd::World& world,
                                                  const sherd::ShardOptions& options) {
  const PrepareModule freeze = [&config](model::CausalLm& module) {
    prepare_run_module(module, config);
    for (at::Tensor& parameter : module->parameters()) {
      parameter.set_requires_grad(false);
    }
  };
  return load_values(config, shape, {sherd::Mesh::shard(world), options, AdapterValues::OfRun},
                     freeze);
}

sherd::Sharded<model::CausalLm> model_to_fill(const config::RunConfig& config,
                                              const ModelShape& shape, const sherd::World& world) {
  const sherd::ShardOptions options = shard_options(config);
  auto model = sherd::fully_shard(prepared_module(shape.config, preparation_of(config)),
                                  mesh_of(config, world), options);
  model.set_gradient_divide_factor(1.0);
  set_up(model, config, options);
  return model;
}

sherd::Sharded<model::CausalLm> load_sharded(const std::string& folder, const sherd::Mesh& mesh,
                                             const sherd::ShardOptions& options,
                                             const io::IgnoredFields& ignored,
                                             const PrepareModule& prepare) {
  struct Read {
    model::CausalLm model;
    std::function<std::string(const std::string&)> name_in_file;
    Settings weights;  // to compare; none where there is nothing to compare with
  };
  sherd::World world = mesh.world();
  Read read = read_on_all_ranks(world, [&] {
    const io::HfConfig config = io::read_model_folder_config(folder, ignored);
    auto model = prepared_module(config, prepare);
    const sherd::WorkPhase reading(world, "comparing the weights of " + folder, kLongestSilence);
    const sherd::SafetensorsFolder weights(folder);
    return Read{model, io::names_in_file(io::match_weights(*model, weights)),
                world.size() > 1 ? weights_identity(weights) : Settings()};
  });
  require_agreement(world, read.weights);
  auto sharded = sherd::fully_shard(read.model, mesh, options);
  sharded.set_gradient_divide_factor(1.0);
  sherd::load_safetensors(sharded, folder, read.name_in_file,
                          io::quantizing_readers(*sharded.module()));
  return sharded;
}

void require_same_adapter(sherd::World world, const config::AdapterSection& adapter) {
  config::RunConfig config;
  config.adapter = adapter;
  config.adapter.dropout = 0;  // of training alone
  Settings settings = config::settings_in_common(config);
  std::erase_if(settings, [](const auto& each) { return !each.first.starts_with("adapter."); });
  require_agreement(world, settings);
}

void load_peft_adapter(sherd::Sharded<model::CausalLm>& model,
                       const config::AdapterSection& adapter) {
  sherd::World world = model.world();
  const Settings weights = read_on_all_ranks(world, [&] {
    adapters::require_peft_tensors(*model.module(), adapter);
    return world.size() > 1
               ? weights_identity(sherd::SafetensorsFolder(adapters::peft_weights_path(adapter)))
               : Settings();
  });
  require_agreement(world, weights);
  adapters::load_adapter(model, adapter);
}

sherd::Sharded<model::CausalLm> random_sharded(const io::HfConfig& config, const sherd::Mesh& mesh,
                                               const sherd::ShardOptions& options,
                                               std::uint64_t seed, const PrepareModule& prepare) {
  auto model = prepared_module(config, prepare);
  const auto fill = model::random_weights(*model, config.shape.initializer_range);
  auto sharded = sherd::fully_shard(model, mesh, options);
  sharded.set_gradient_divide_factor(1.0);
  sherd::initialize(sharded, seed, fill);
  return sharded;
}

std::int64_t loss_chunk_tokens(const LossChunk& asked, std::int64_t row_bytes,
                               std::int64_t gpu_memory_bytes) {
  constexpr std::int64_t kMostRows = 8192, kShareOfMemory = 32;
  if (asked.tokens) {
    return *asked.tokens;
  }
  if (!asked.bytes && gpu_memory_bytes == 0) {
    return sherd::ops::kLossChunkTokens;
  }
  const std::int64_t bytes = asked.bytes.value_or(gpu_memory_bytes / kShareOfMemory);
  return std::clamp<std::int64_t>(bytes / row_bytes, 1, kMostRows);
}

void set_loss_chunk(sherd::Sharded<model::CausalLm>& model, const sherd::ShardOptions& options,
                    const LossChunk& asked) {
  const auto element = static_cast<std::int64_t>(
      c10::elementSize(options.precision.param_dtype.value_or(c10::kFloat)));
  const sherd::Gpu* const gpu = gpu_of(model.world());
  model.module()->set_loss_chunk_tokens(loss_chunk_tokens(
      asked, element * model.module()->vocab_rows(), gpu == nullptr ? 0 : gpu->memory_bytes));
}

}  // namespace llm::setup
