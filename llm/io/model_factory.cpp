#include "llm/io/model_factory.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "llm/model/llama.h"
#include "sherd/error.h"

namespace llm::io {

model::CausalLm build_model(const HfConfig& config) {
  std::shared_ptr<model::CausalLmImpl> model = std::make_shared<model::LlamaImpl>(config.llama);
  return model::CausalLm(std::move(model));
}

HfConfig read_model_folder_config(const std::string& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw sherd::Error(sherd::ExitCode::InputMissing,
                       folder +
                           ": no such folder; expected a Hugging Face model folder with "
                           "config.json, model.safetensors and tokenizer.json");
  }
  return read_hf_config(folder + "/config.json");
}

}  // namespace llm::io
