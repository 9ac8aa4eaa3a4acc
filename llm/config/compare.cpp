#include <map>

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
    const bool idle = leaf.field.idle && (found == old.end() || found->second.field.idle);
    if (leaf.field.decides && !idle && was != leaf.text()) {
      differences.push_back({leaf.key, was, leaf.text()});
    }
    old.erase(leaf.key);
  }
  for (const auto& [key, leaf] : old) {
    if (leaf.field.decides && !leaf.field.idle) {
      differences.push_back({key, leaf.text(), "absent"});
    }
  }
  return differences;
}

}  // namespace llm::config
