#include "llm/setup/reference_key.h"

#include <filesystem>

#include <fmt/core.h>

#include "files/input.h"
#include "files/sha256.h"
#include "llm/adapters/peft_config.h"
#include "llm/adapters/peft_weights.h"
#include "llm/setup/base_weights.h"
#include "llm/setup/model_identity.h"

namespace llm::setup {

namespace {

namespace files = sherd::files;

constexpr std::uint64_t kMostConfigBytes = std::uint64_t{16} << 20;
constexpr std::size_t kDigitsInMessages = 12;  // of a digest

// Of the folder in adapter.path; its path says nothing, since another adapter may be saved there.
std::string adapter_digests(const config::AdapterSection& adapter) {
  const auto config = std::filesystem::path(adapter.path) / adapters::kPeftConfigFile;
  return files::sha256_of(files::read_file(config.string(), kMostConfigBytes)) + "\n" +
         base_weights(adapters::peft_weights_path(adapter)).sha256 + "\n";
}

}  // namespace

std::string start_weights(const config::RunConfig& config, const io::HfConfig& model_config,
                          const std::string& base) {
  std::string text;
  if (config.model.init == config::Init::Random) {
    text = fmt::format("random: seed {}, initializer_range {}\n", config.train.seed,
                       model_config.shape.initializer_range);
  } else {
    text = (base.empty() ? base_weights(config.model.path).sha256 : base) + "\n";
  }
  if (!config.adapter.path.empty()) {
    text += adapter_digests(config.adapter);
  }
  return files::sha256_of(text);
}

ReferenceKey reference_key(const config::RunConfig& config, const io::HfConfig& model_config,
                           const text::Tokenizer& tokenizer, const std::string& base) {
  ReferenceKey key;
  key.weights = start_weights(config, model_config, base);
  Settings decides = model_identity(model_config, tokenizer);
  decides.emplace_back("weights", key.weights);
  decides.emplace_back("param_dtype",
                       std::to_string(static_cast<int>(config.precision.param_dtype)));
  decides.emplace_back("quantize", std::to_string(static_cast<int>(config.model.quantize)));
  // Rotary positions of some models depend on it.
  decides.emplace_back("max_length", std::to_string(config.data.max_length.value_or(0)));
  std::string text;
  for (const auto& [name, value] : decides) {
    text += name + "=" + value + "\n";
  }
  key.sha256 = files::sha256_of(text);
  return key;
}

std::string changed_start(const std::string& then, const std::string& now,
                          const config::RunConfig& config) {
  const std::string adapter =
      config.adapter.path.empty() ? "" : fmt::format(" and '{}'", config.adapter.path);
  return fmt::format(
      "the SHA-256 of its weights was {}… and is now {}…. Restore the weights in '{}'{}",
      then.substr(0, kDigitsInMessages), now.substr(0, kDigitsInMessages), config.model.path,
      adapter);
}

}  // namespace llm::setup
