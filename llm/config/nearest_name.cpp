#include "llm/config/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace llm::config {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);  // distances of a's first i bytes to each prefix of b
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string nearest_name(std::string_view word, std::span<const std::string> candidates) {
  const auto distance = [&](const std::string& candidate) {
    const bool part = word.size() > 2 && candidate.size() > 2 &&
                      (candidate.find(word) != std::string::npos ||
                       word.find(candidate) != std::string_view::npos);
    return part ? std::size_t{1} : edit_distance(word, candidate);
  };
  const auto nearest = std::min_element(
      candidates.begin(), candidates.end(),
      [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
  if (nearest == candidates.end()) {
    return "";
  }
  const std::size_t longer = std::max(word.size(), nearest->size());
  const std::size_t allowed = std::max<std::size_t>(longer < 4 ? 1 : 2, longer / 3);
  return distance(*nearest) <= allowed ? *nearest : "";
}

}  // namespace llm::config
