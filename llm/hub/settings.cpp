#include "llm/hub/settings.h"

#include <algorithm>
#include <cctype>

#include "files/input.h"
#include "net/url.h"
#include "sherd/error.h"

namespace llm::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTokenBytes = 4096;

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  const auto last = text.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

bool is_true(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

class Variables {
 public:
  explicit Variables(const Lookup& lookup) : lookup_(lookup) {}

  [[nodiscard]] std::string text(const std::string& name) const {
    return trimmed(lookup_(name).value_or(""));
  }
  [[nodiscard]] fs::path path(const std::string& name) const {
    const std::string given = text(name);
    return given.starts_with("~/") ? fs::path(text("HOME")) / given.substr(2) : fs::path(given);
  }
  /// HF_HOME; empty where there is no place for it.
  [[nodiscard]] fs::path home() const {
    if (const fs::path given = path("HF_HOME"); !given.empty()) {
      return given;
    }
    if (const fs::path caches = path("XDG_CACHE_HOME"); !caches.empty()) {
      return caches / "huggingface";
    }
    const fs::path user = path("HOME");
    return user.empty() ? user : user / ".cache/huggingface";
  }

 private:
  const Lookup& lookup_;
};

// `name` in HF_HOME, unless a variable says where it is.
fs::path place_of(const Variables& variables, const std::string& variable, const char* name) {
  const fs::path given = variables.path(variable);
  const fs::path home = variables.home();
  return !given.empty() || home.empty() ? given : home / name;
}

std::string endpoint_of(const Variables& variables) {
  std::string endpoint = variables.text("HF_ENDPOINT");
  if (endpoint.empty()) {
    return "https://huggingface.co";
  }
  endpoint.erase(endpoint.find_last_not_of('/') + 1);
  try {
    static_cast<void>(sherd::net::origin_of(endpoint));
  } catch (const sherd::Error& error) {
    throw sherd::Error(error.code(), std::string("HF_ENDPOINT: ") + error.what());
  }
  return endpoint;
}

}  // namespace

HubSettings hub_settings(const Lookup& variable) {
  const Variables variables(variable);
  HubSettings settings;
  settings.endpoint = endpoint_of(variables);
  settings.is_open_to_others = sherd::net::is_open_to_others(settings.endpoint, variable);
  settings.token = variables.text("HF_TOKEN");
  settings.token_file = place_of(variables, "HF_TOKEN_PATH", "token");
  settings.cache = place_of(variables, "HF_HUB_CACHE", "hub");
  if (settings.cache.empty()) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       "there is no place for files of the hub: set HF_HOME or HF_HUB_CACHE to a "
                       "folder (HOME is not set either)");
  }
  settings.offline = is_true(variables.text("HF_HUB_OFFLINE"));
  return settings;
}

std::string token_of(const HubSettings& settings) {
  std::error_code ignored;
  if (!settings.token.empty() || settings.token_file.empty() ||
      !fs::exists(settings.token_file, ignored)) {
    return settings.token;
  }
  return trimmed(sherd::files::read_file(settings.token_file.string(), kMaxTokenBytes));
}

std::string shown_place(const HubSettings& settings, const std::string& path) {
  std::string place = sherd::net::shown(settings.endpoint + path);
  if (path.empty() && place.ends_with('/')) {
    place.pop_back();
  }
  return place;
}

}  // namespace llm::hub
