#pragma once
// Which hub is asked, as whom, and where its files are kept: Hugging Face's own variables.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace llm::hub {

/// Looks up a variable of the environment.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

struct HubSettings {
  std::string endpoint;         ///< HF_ENDPOINT, else https://huggingface.co; no slash at its end
  std::string token;            ///< HF_TOKEN, else the file of `hf auth login`; empty: none
  std::filesystem::path cache;  ///< HF_HUB_CACHE, else $HF_HOME/hub: folders of repositories
  bool offline = false;         ///< HF_HUB_OFFLINE
};

/// The token's file is HF_TOKEN_PATH, else $HF_HOME/token; HF_HOME is ~/.cache/huggingface unless
/// set. Throws sherd::Error: Usage where there is neither HF_HOME nor a home, InputMissing or
/// BadData for a token's file that cannot be read.
[[nodiscard]] HubSettings hub_settings(const Lookup& variable);

}  // namespace llm::hub
