#include "files/wrapped_text.h"

#include <algorithm>
#include <cstddef>

namespace sherd::files {

namespace {

// The bytes of the first `columns` characters.
std::size_t bytes_of(std::string_view text, int columns) {
  std::size_t at = 0;
  for (int column = 0; column < columns && at < text.size(); ++column) {
    do {
      ++at;
    } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80U);
  }
  return at;
}

// How much of `text` stands on a line.
std::size_t bytes_of_line(std::string_view text, int columns, std::string_view part) {
  const std::size_t most = bytes_of(text, columns);
  const std::size_t shown = part == " " ? 0 : part.size();  // of the part, at the end of a line
  if (most == text.size() || most < shown) {
    return most;
  }
  const std::size_t found = text.rfind(part, most - shown);
  return found == std::string_view::npos || found + shown == 0 ? most : found + shown;
}

}  // namespace

std::string wrapped(std::string_view line, int columns, int indent, std::string_view part) {
  std::string lines;
  for (int room = columns;; room = columns - indent) {
    const std::size_t bytes = bytes_of_line(line, std::max(1, room), part);
    lines += line.substr(0, bytes);
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(' ', bytes)));
    if (line.empty()) {
      return lines;
    }
    lines += '\n' + std::string(static_cast<std::size_t>(indent), ' ');
  }
}

}  // namespace sherd::files
