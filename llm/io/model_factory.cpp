#include "llm/io/model_factory.h"

#include <filesystem>
#include <memory>
#include <utility>
#include <variant>

#include "llm/model/bloom.h"
#include "llm/model/llama.h"
#include "sherd/error.h"

namespace llm::io {

namespace {

// The module of each family, by its configuration.
struct Build {
  std::shared_ptr<model::CausalLmImpl> operator()(const model::LlamaConfig& config) const {
    return std::make_shared<model::LlamaImpl>(config);
  }
  std::shared_ptr<model::CausalLmImpl> operator()(const model::BloomConfig& config) const {
    return std::make_shared<model::BloomImpl>(config);
  }
};

}  // namespace

model::CausalLm build_model(const HfConfig& config) {
  return model::CausalLm(std::visit(Build{}, config.shape));
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
