#include "llm/text/json_numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "files/json.h"
#include "sherd/error.h"

namespace llm::text {

namespace {

// `word`: bytes between separators, outside of strings.
bool is_not_finite(std::string_view word) {
  if (word == "NaN" || word == "Infinity" || word == "-Infinity") {
    return true;
  }
  const std::string text(word);
  char* end = nullptr;
  const bool is_number = !word.empty() && word.find_first_not_of("-+.0123456789eE") == word.npos;
  return is_number && std::isinf(std::strtod(text.c_str(), &end)) && *end == '\0';
}

}  // namespace

std::optional<std::string> with_finite_numbers(std::string_view bytes) {
  std::optional<std::string> changed;
  for (std::size_t next = 0; next < bytes.size();) {
    if (bytes[next] == '"') {
      for (++next; next < bytes.size() && bytes[next] != '"'; ++next) {
        next += bytes[next] == '\\' ? 1 : 0;
      }
      ++next;
      continue;
    }
    const std::size_t end = std::min(bytes.find_first_of("\",:[]{} \t\r\n", next), bytes.size());
    if (is_not_finite(bytes.substr(next, end - next))) {
      changed = changed ? std::move(changed) : std::string(bytes);
      changed->replace(next, end - next, std::string(end - next, ' ')).replace(next, 1, "0");
    }
    next = std::max(end, next + 1);
  }
  return changed;
}

nlohmann::json parse_data_json(const std::string& bytes, const std::string& place) {
  try {
    return sherd::files::parse_json(bytes, place);
  } catch (const sherd::Error&) {
    const auto finite = with_finite_numbers(bytes);
    if (!finite) {
      throw;
    }
    return sherd::files::parse_json(*finite, place);
  }
}

}  // namespace llm::text
