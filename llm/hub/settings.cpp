#include "llm/hub/settings.h"

#include <algorithm>
#include <cctype>

#include "files/input.h"
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
  [[nodiscard]] fs::path home() const {
    if (const fs::path given = path("HF_HOME"); !given.empty()) {
      return given;
    }
    if (const fs::path caches = path("XDG_CACHE_HOME"); !caches.empty()) {
      return caches / "huggingface";
    }
    const fs::path user = path("HOME");
    if (user.empty()) {
      throw sherd::Error(sherd::ExitCode::Usage,
                         "there is no place for files of the hub: set HF_HOME or HF_HUB_CACHE to a "
                         "folder (neither HOME is set)");
    }
    return user / ".cache/huggingface";
  }

 private:
  const Lookup& lookup_;
};

std::string token_of(const Variables& variables) {
  if (const std::string token = variables.text("HF_TOKEN"); !token.empty()) {
    return token;
  }
  fs::path file = variables.path("HF_TOKEN_PATH");
  file = file.empty() ? variables.home() / "token" : file;
  std::error_code ignored;
  return fs::exists(file, ignored) ? trimmed(sherd::files::read_file(file.string(), kMaxTokenBytes))
                                   : "";
}

}  // namespace

HubSettings hub_settings(const Lookup& variable) {
  const Variables variables(variable);
  HubSettings settings;
  settings.endpoint = variables.text("HF_ENDPOINT");
  if (settings.endpoint.empty()) {
    settings.endpoint = "https://huggingface.co";
  }
  settings.endpoint.erase(settings.endpoint.find_last_not_of('/') + 1);
  settings.token = token_of(variables);
  settings.cache = variables.path("HF_HUB_CACHE");
  if (settings.cache.empty()) {
    settings.cache = variables.home() / "hub";
  }
  settings.offline = is_true(variables.text("HF_HUB_OFFLINE"));
  return settings;
}

}  // namespace llm::hub
