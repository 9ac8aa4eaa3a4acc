#pragma once
// The hub, the token and the cache, from Hugging Face's own variables.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace llm::hub {

/// Looks up a variable of the environment.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Takes lines for people: what is fetched, and what it waits for.
using Say = std::function<void(const std::string& line)>;
/// Called a few times per second with the progress of a file; if empty, lines report progress.
using Grown = std::function<void(const std::string& file, std::uint64_t done_bytes,
                                 std::uint64_t size_bytes)>;

struct HubSettings {
  std::string endpoint;  ///< HF_ENDPOINT, else https://huggingface.co; no slash at its end
  std::string token;     ///< HF_TOKEN; empty: that of the file
  std::filesystem::path token_file;  ///< HF_TOKEN_PATH, else $HF_HOME/token; empty: none
  std::filesystem::path cache;       ///< HF_HUB_CACHE, else $HF_HOME/hub: folders of repositories
  bool offline = false;              ///< HF_HUB_OFFLINE
  /// The connection to `endpoint` is not encrypted: it gets no token.
  bool is_open_to_others = false;
};

/// HF_HOME is ~/.cache/huggingface unless set. Reads no file. Throws sherd::Error(Usage) if none of
/// HF_HUB_CACHE, HF_HOME and HOME gives the cache, and for an endpoint that is not a URL.
[[nodiscard]] HubSettings hub_settings(const Lookup& variable);

/// Returns the token to send, if any: from the variable, else from the file. Throws
/// sherd::Error(InputMissing or BadData) if the file cannot be read.
[[nodiscard]] std::string token_of(const HubSettings& settings);

/// Returns a place on the hub for messages: its endpoint and the path.
[[nodiscard]] std::string shown_place(const HubSettings& settings, const std::string& path = "");

}  // namespace llm::hub
