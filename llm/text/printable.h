#pragma once
// Text of data and models as it may be shown to people.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace llm::text {

/// What becomes of line ends.
enum class Lines { Keep, Escape };

/// A text that commands no terminal and reads in its own order: control characters (C0 but the tab,
/// DEL, C1), those that turn the direction of writing, other separators of lines and bytes that are
/// no UTF-8 stand as \x1b or \u202e. JSON stays the same JSON.
[[nodiscard]] std::string printable(std::string_view text, Lines lines = Lines::Escape);

/// The start of a text, printable, in quotes, on one line: at most `bytes` of it, and … where there
/// is more.
[[nodiscard]] std::string in_quotes(std::string_view text, std::size_t bytes = 40);

/// A number of things: "1 sample", "2 samples".
[[nodiscard]] std::string counted(std::int64_t number, std::string_view what);

}  // namespace llm::text
