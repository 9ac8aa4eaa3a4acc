#include "app/recipe.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "llm/setup/agreement.h"
#include "sherd/error.h"

namespace app {

namespace {

std::vector<std::string> expand(const std::vector<std::string>& flags) {
  std::vector<std::string> expanded;
  for (const std::string& flag : flags) {
    const bool resume = flag == "--resume" || flag.rfind("--resume=", 0) == 0;
    expanded.push_back(resume ? "--checkpoint." + flag.substr(2) : flag);
  }
  return expanded;
}

bool has_flag(const std::vector<std::string>& words, const std::string& flag) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return word == flag || word.starts_with(flag + "=");
  });
}

// Takes the word that is neither a flag nor a flag's value; empty if there is none. Each flag has a
// value, in the same word or in the next.
std::string take_file(std::vector<std::string>& words) {
  const auto is_flag = [](const std::string& word) { return word.starts_with("--"); };
  for (size_t i = 0; i < words.size(); ++i) {
    if (!is_flag(words[i])) {
      std::string file = std::move(words[i]);
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
      return file;
    }
    const bool value_follows =
        words[i].find('=') == std::string::npos && i + 1 < words.size() && !is_flag(words[i + 1]);
    i += value_follows ? 1 : 0;
  }
  return "";
}

// Replaces a run's folder by the configuration that it was started with, and makes the folder the
// output.
std::string recipe_of(const std::string& file, std::vector<std::string>& words) {
  std::error_code ignored;
  const std::filesystem::path config = std::filesystem::path(file) / "config.toml";
  if (file.empty() || !std::filesystem::is_regular_file(config, ignored)) {
    return file;
  }
  if (!has_flag(words, "--train.output")) {
    words.insert(words.end(), {"--train.output", file});
  }
  if (!has_flag(words, "--resume") && !has_flag(words, "--checkpoint.resume")) {
    words.insert(words.end(), {"--checkpoint.resume", "auto"});  // whatever it was begun with
  }
  return config.string();
}

class WithRecipe : public CLI::Formatter {
  [[nodiscard]] std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    return usage.insert(usage.find_last_not_of('\n') + 1, " RECIPE.toml [--section.key VALUE ...]");
  }
};

}  // namespace

llm::config::RunConfig load_recipe(std::vector<std::string> words,
                                   const std::function<void(const std::string&)>& say,
                                   std::optional<int> most_threads) {
  const std::string file = recipe_of(take_file(words), words);
  return llm::config::load(file.empty() ? std::nullopt : std::optional<std::filesystem::path>(file),
                           expand(words), say, most_threads);
}

llm::config::RunConfig load_recipe_to_read(std::vector<std::string> words,
                                           const std::function<void(const std::string&)>& say) {
  constexpr const char* kNowhere = "/dev/null/run";  // a path that cannot exist
  std::vector<std::string> rest = words;
  if (take_file(rest).empty() && !has_flag(words, "--train.output")) {
    words.insert(words.end(), {"--train.output", kNowhere});
  }
  return load_recipe(std::move(words), say);
}

llm::config::RunConfig load_recipe_on(const Rank& rank, const std::vector<std::string>& words,
                                      bool json_on_stdout) {
  const auto say_first = [&](const std::string& line) {
    if (rank.is_first()) {
      say(line, json_on_stdout);
    }
  };
  try {
    return load_recipe(words, say_first, static_cast<int>(std::thread::hardware_concurrency()));
  } catch (const sherd::Error& error) {
    if (rank.is_first()) {
      throw;
    }
    throw llm::setup::ReportedElsewhere(error.code(), "");
  }
}

void show_recipe_in_usage(CLI::App& verb) {
  verb.formatter(std::make_shared<WithRecipe>());
}

}  // namespace app
