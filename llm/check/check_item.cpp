#include "llm/check/check_item.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace llm::check {

bool all_ok(const std::vector<CheckItem>& items) {
  return std::all_of(items.begin(), items.end(), [](const CheckItem& item) { return item.ok; });
}

std::string to_json(const std::vector<CheckItem>& items) {
  nlohmann::ordered_json line = {{"ok", all_ok(items)}, {"items", nlohmann::ordered_json::array()}};
  for (const CheckItem& item : items) {
    line["items"].push_back({{"name", item.name},
                             {"ok", item.ok},
                             {"measured", item.measured},
                             {"limit", item.limit},
                             {"unit", item.unit},
                             {"message", item.message}});
  }
  return line.dump();
}

std::string to_text(const CheckItem& item) {
  return fmt::format("{} {:<22} {}", item.ok ? "ok  " : "FAIL", item.name, item.message);
}

}  // namespace llm::check
