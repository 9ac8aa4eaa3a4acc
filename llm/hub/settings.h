#pragma once
// Which hub is asked, as whom, and where its files are kept: Hugging Face's own variables.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace llm::hub {

/// Looks up a variable of the environment.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Told a line for people: what is fetched, for whom it waits.
using Say = std::function<void(const std::string& line)>;
/// Told a few times a second how much of a file is there; where it is empty, lines tell of that.
using Grown = std::function<void(const std::string& file, std::uint64_t done_bytes,
                                 std::uint64_t size_bytes)>;

struct HubSettings {
  std::string endpoint;  ///< HF_ENDPOINT, else https://huggingface.co; no slash at its end
  std::string token;     ///< HF_TOKEN; empty: that of the file
  std::filesystem::path token_file;  ///< HF_TOKEN_PATH, else $HF_HOME/token; empty: none
  std::filesystem::path cache;       ///< HF_HUB_CACHE, else $HF_HOME/hub: folders of repositories
  bool offline = false;              ///< HF_HUB_OFFLINE
  /// Others could read along what is sent to `endpoint`: it gets no token.
  bool is_open_to_others = false;
};

/// HF_HOME is ~/.cache/huggingface unless set. Reads no file. Throws sherd::Error(Usage) where the
/// cache is in none of HF_HUB_CACHE, HF_HOME and a home, and for an endpoint that is no URL.
[[nodiscard]] HubSettings hub_settings(const Lookup& variable);

/// The token that is to be sent, if any: the variable's, else the file's. Throws
/// sherd::Error(InputMissing or BadData) for a file that cannot be read.
[[nodiscard]] std::string token_of(const HubSettings& settings);

/// A place on the hub, as it may be shown: its endpoint and what follows.
[[nodiscard]] std::string shown_place(const HubSettings& settings, const std::string& path = "");

}  // namespace llm::hub
