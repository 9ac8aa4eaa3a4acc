#include "llm/setup/load_model.h"

#include <algorithm>
#include <functional>
#include <string>

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
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/init.h"

namespace llm::setup {

namespace {

sherd::Sharded<model::CausalLm> load_weights_of(const std::string& folder, const sherd::Mesh& mesh,
                                                const sherd::ShardOptions& options,
                                                const io::IgnoredFields& ignored) {
  try {
    return load_sharded(folder, mesh, options, ignored);
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

}  // namespace

text::Tokenizer load_tokenizer(const std::string& folder) {
  io::require_model_folder(folder, {io::kConfigFile, io::kTokenizerFile});
  return text::Tokenizer::from_folder(folder);
}

ModelShape model_shape(const std::string& folder, const io::IgnoredFields& ignored) {
  io::HfConfig config = io::read_model_folder_config(folder, ignored);
  auto shapes = sherd::on_meta([&] { return io::build_model(config); });
  std::int64_t parameters = 0;
  for (const at::Tensor& parameter : shapes->parameters()) {
    parameters += parameter.numel();
  }
  return {std::move(config), std::move(shapes), parameters};
}

std::string rope_remark(const ModelShape& shape, std::int64_t max_length) {
  const auto& rope = shape.config.shape.rope;
  return rope ? model::longrope_remark(
                    *rope, inputs::sample_length(max_length, shape.shapes->context_length()))
              : "";
}

sherd::Sharded<model::CausalLm> load_model(const config::RunConfig& config, const ModelShape& shape,
                                           const sherd::World& world) {
  const sherd::Mesh mesh = mesh_of(config, world);
  const sherd::ShardOptions options = shard_options(config);
  auto model =
      config.model.init == config::Init::Random
          ? random_sharded(shape.config, mesh, options,
                           static_cast<std::uint64_t>(config.train.seed))
          : load_weights_of(config.model.path, mesh, options, {config.model.ignore_fields});
  set_up(model, config, options);
  return model;
}

sherd::Sharded<model::CausalLm> model_to_fill(const config::RunConfig& config,
                                              const ModelShape& shape, const sherd::World& world) {
  const sherd::ShardOptions options = shard_options(config);
  auto model = sherd::fully_shard(sherd::on_meta([&] { return io::build_model(shape.config); }),
                                  mesh_of(config, world), options);
  model.set_gradient_divide_factor(1.0);
  set_up(model, config, options);
  return model;
}

sherd::Sharded<model::CausalLm> load_sharded(const std::string& folder, const sherd::Mesh& mesh,
                                             const sherd::ShardOptions& options,
                                             const io::IgnoredFields& ignored) {
  struct Read {
    model::CausalLm model;
    std::function<std::string(const std::string&)> name_in_file;
    Settings weights;  // to compare; none where there is nothing to compare with
  };
  sherd::World world = mesh.world();
  Read read = read_on_all_ranks(world, [&] {
    const io::HfConfig config = io::read_model_folder_config(folder, ignored);
    auto model = sherd::on_meta([&] { return io::build_model(config); });
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

sherd::Sharded<model::CausalLm> random_sharded(const io::HfConfig& config, const sherd::Mesh& mesh,
                                               const sherd::ShardOptions& options,
                                               std::uint64_t seed) {
  auto model = sherd::on_meta([&] { return io::build_model(config); });
  const auto fill = model::random_weights(*model, config.shape.initializer_range, seed);
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
