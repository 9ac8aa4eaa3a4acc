#include "llm/text/printable.h"

#include <algorithm>
#include <iterator>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "llm/text/utf8.h"

namespace llm::text {

namespace {

// First and last of what changes how a terminal shows other text.
struct Range {
  char32_t first;
  char32_t last;
};
constexpr Range kCommands[] = {
    {0x7F, 0x9F},      // DEL and C1
    {0x61C, 0x61C},    // Arabic letter mark
    {0x200E, 0x200F},  // marks of direction
    {0x2028, 0x202E},  // separators of lines and paragraphs; embeddings, overrides
    {0x2066, 0x2069},  // isolates
};

bool is_command(char32_t value) {
  return std::any_of(std::begin(kCommands), std::end(kCommands), [&](const Range& range) {
    return value >= range.first && value <= range.last;
  });
}

std::string shown(const CodePoint& point, std::string_view bytes, Lines lines) {
  if (point.value == '\n') {
    return lines == Lines::Keep ? "\n" : "\\n";
  }
  if (point.value < 0x20 && point.value != '\t') {
    return fmt::format("\\x{:02x}", static_cast<unsigned>(point.value));
  }
  return is_command(point.value) ? fmt::format("\\u{:04x}", static_cast<unsigned>(point.value))
                                 : std::string(bytes);
}

}  // namespace

std::string printable(std::string_view text, Lines lines) {
  std::string safe;
  safe.reserve(text.size());
  while (!text.empty()) {
    const auto point = first_code_point(text);
    const std::string_view bytes = text.substr(0, point ? point->bytes : 1);
    safe += point ? shown(*point, bytes, lines)
                  : fmt::format("\\x{:02x}", static_cast<unsigned char>(bytes.front()));
    text.remove_prefix(bytes.size());
  }
  return safe;
}

std::string in_quotes(std::string_view text, std::size_t bytes) {
  using nlohmann::json;
  const std::string_view start = start_of(text, bytes);
  const json cut = std::string(start) + (start.size() < text.size() ? "…" : "");
  return printable(cut.dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string counted(std::int64_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

}  // namespace llm::text
