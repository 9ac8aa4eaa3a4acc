#pragma once
// Text in lines of a terminal.

#include <string>
#include <string_view>

namespace sherd::files {

/// A line of UTF-8, broken after `part`, such as a space or ",", where it is wider than `columns`,
/// and anywhere where no `part` comes before that. What follows a break begins at column `indent`,
/// without spaces that stood there. Without a line end after the last.
[[nodiscard]] std::string wrapped(std::string_view line, int columns, int indent = 0,
                                  std::string_view part = " ");

}  // namespace sherd::files
