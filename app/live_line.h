#pragma once
// A line of the terminal that is redrawn in place.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <unistd.h>

#include "app/rank.h"
#include "llm/track/progress.h"

namespace app {

/// Returns as many characters of `text` (UTF-8) as fit into `columns`.
[[nodiscard]] std::string cut_to(const std::string& text, int columns);

/// Returns `text` wrapped between words to the width of the descriptor's terminal, with
/// continuation lines indented; unchanged if the descriptor is not a terminal.
[[nodiscard]] std::string fitted(const std::string& text, int descriptor);

/// Returns a function that shows a text in place of the last one, and clears the line for an empty
/// text. Returns none if the descriptor is not a terminal. For llm::track::Output.
[[nodiscard]] std::function<void(const std::string& text)> live_line(
    int descriptor = STDOUT_FILENO);

/// Returns standard output with its live line, or standard error with its own if standard output
/// is reserved for JSON.
[[nodiscard]] llm::track::Output output_for_people(bool json_on_stdout = false);

/// Returns the progress display of a verb; null on ranks other than the first.
[[nodiscard]] std::unique_ptr<llm::track::Progress> progress_of(const Rank& rank,
                                                                bool json_on_stdout = false);

/// Returns the columns of the descriptor's terminal, or `otherwise` if it is not a terminal.
[[nodiscard]] int terminal_columns(int otherwise, int descriptor = STDOUT_FILENO);
/// Returns the rows of the terminal at standard output; none if it is not a terminal.
[[nodiscard]] std::optional<int> terminal_rows();

}  // namespace app
