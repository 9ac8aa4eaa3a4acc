#include "llm/train/load_model.h"

#include <filesystem>
#include <system_error>

#include "llm/io/import.h"
#include "llm/io/model_factory.h"
#include "sherd/checkpoint.h"
#include "sherd/error.h"

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
  static_cast<void>(io::match_weights(*model, sherd::SafetensorsFolder(folder)));
  auto sharded = sherd::fully_shard(model, mesh, options);
  sharded.set_gradient_divide_factor(1.0);
  sherd::load_safetensors(sharded, folder);
  return sharded;
}

}  // namespace llm::train
