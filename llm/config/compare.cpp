#include <map>

#include <fmt/core.h>

#include "llm/config/fields.h"

namespace llm::config {

std::vector<std::pair<std::string, std::string>> settings_in_common(const RunConfig& config) {
  RunConfig copy = config;
  std::vector<std::pair<std::string, std::string>> settings;
  for (const Leaf& leaf : leaves(copy)) {
    if (!leaf.field.of_host) {
      settings.emplace_back(leaf.key, leaf.text());
    }
  }
  return settings;
}

std::vector<Difference> deciding_differences(const RunConfig& before, const RunConfig& after) {
  RunConfig then = before;
  RunConfig now = after;
  std::map<std::string, Leaf> old;
  std::vector<Difference> differences;
  for (const Leaf& leaf : leaves(then)) {
    old.emplace(leaf.key, leaf);
  }
  for (const Leaf& leaf : leaves(now)) {
    const auto found = old.find(leaf.key);
    const std::string was = found == old.end() ? "absent" : found->second.text();
    const bool idle =
        !leaf.field.idle.empty() && (found == old.end() || !found->second.field.idle.empty());
    if (leaf.field.on_resume != OnResume::Free && !idle && was != leaf.text()) {
      differences.push_back({leaf.key, was, leaf.text(), leaf.field.on_resume});
    }
    old.erase(leaf.key);
  }
  for (const auto& [key, leaf] : old) {
    if (leaf.field.on_resume != OnResume::Free && leaf.field.idle.empty()) {
      differences.push_back({key, leaf.text(), "absent", leaf.field.on_resume});
    }
  }
  return differences;
}

namespace {

// As long lists as those of `config`, and else what a file without keys gives.
RunConfig defaults_like(const RunConfig& config) {
  RunConfig defaults;
  defaults.data.train.resize(config.data.train.size());
  defaults.data.eval.resize(config.data.eval.size());
  defaults.log.sink.resize(config.log.sink.size());
  return defaults;
}

}  // namespace

std::vector<std::string> settings_without_effect(const RunConfig& config, int ranks) {
  RunConfig copy = config;
  RunConfig defaults = defaults_like(config);
  const std::vector<Leaf> usual = leaves(defaults);
  std::vector<std::string> lines;
  for (std::size_t i = 0; const Leaf& leaf : leaves(copy)) {
    const bool alone = ranks == 1 && leaf.key.starts_with("parallel.") &&
                       leaf.text() != R"("no_shard")";  // which is what one rank does
    const std::string why = alone ? "there is one rank" : leaf.field.idle;
    if (!why.empty() && leaf.text() != usual[i].text()) {
      lines.push_back(fmt::format("{} = {} has no effect: {}", leaf.key, leaf.text(), why));
    }
    ++i;
  }
  return lines;
}

}  // namespace llm::config
