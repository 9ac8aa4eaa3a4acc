#pragma once
// A line of the terminal that changes in its place.

#include <functional>
#include <string>

#include "llm/track/progress.h"

namespace app {

/// As many characters of `text`, which is UTF-8, as fit into `columns`.
[[nodiscard]] std::string cut_to(const std::string& text, int columns);

/// Shows text in the place of what it showed before, and clears it for an empty one; none where
/// standard output is no terminal. For llm::track::Output.
[[nodiscard]] std::function<void(const std::string& text)> live_line();

/// Standard output, with its live line; standard error, without one, where the other is kept for
/// JSON.
[[nodiscard]] llm::track::Output output_for_people(bool json_on_stdout = false);

/// Columns of the terminal that standard output is; otherwise this many.
[[nodiscard]] int terminal_columns(int otherwise);

}  // namespace app
