#pragma once
// Tables and sentences for a terminal of fixed width.

#include <cstddef>
#include <string>
#include <vector>

namespace llm::runs {

/// Lays out `rows`, whose first row is the titles. Lines of a title are separated by '\n'. The
/// first column is left-aligned, the others right-aligned. If the table is wider than `width`, it
/// is printed as several blocks of columns with a blank line between them; each begins with the
/// first column. A single column that is wider stays as it is.
[[nodiscard]] std::string in_blocks(const std::vector<std::vector<std::string>>& rows,
                                    std::size_t width);

/// Breaks `text` at spaces into lines of at most `width` characters. All lines but the first are
/// indented by `indent`. Ends with '\n'. A word that is longer stays as it is.
[[nodiscard]] std::string wrapped(const std::string& text, std::size_t width, std::size_t indent);

/// The number of characters in UTF-8 text.
[[nodiscard]] std::size_t characters_in(const std::string& text);

}  // namespace llm::runs
