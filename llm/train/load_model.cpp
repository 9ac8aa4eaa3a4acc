#include "llm/train/load_model.h"

#include <filesystem>
#include <system_error>

#include "llm/io/import.h"
#include "llm/io/model_factory.h"
#include "llm/model/random_weights.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/init.h"

namespace llm::train {

text::Tokenizer load_tokenizer(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       "the model folder '" + folder +
                           "' is not there. Give a Hugging Face folder: config.json, "
                           "model.safetensors and tokenizer.json.");
  }
  return text::Tokenizer::from_folder(folder);
}

sherd::Sharded<model::CausalLm> load_sharded(const std::string& folder, const sherd::Mesh& mesh,
                                             const sherd::ShardOptions& options) {
  const io::HfConfig config = io::read_model_folder_config(folder);
  auto model = sherd::on_meta([&] { return io::build_model(config); });
  const auto names = io::names_in_file(io::match_weights(*model, sherd::SafetensorsFolder(folder)));
  auto sharded = sherd::fully_shard(model, mesh, options);
  sharded.set_gradient_divide_factor(1.0);
  sherd::load_safetensors(sharded, folder, names);
  return sharded;
}

sherd::Sharded<model::CausalLm> random_sharded(const io::HfConfig& config, const sherd::Mesh& mesh,
                                               const sherd::ShardOptions& options,
                                               std::uint64_t seed) {
  auto sharded =
      sherd::fully_shard(sherd::on_meta([&] { return io::build_model(config); }), mesh, options);
  sharded.set_gradient_divide_factor(1.0);
  sherd::initialize(sharded, seed, [deviation = io::initializer_range(config)](auto& parameter) {
    model::fill_random(parameter, deviation);
  });
  return sharded;
}

}  // namespace llm::train
