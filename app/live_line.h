#pragma once
// A line of the terminal that changes in its place.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <unistd.h>

#include "app/rank.h"
#include "llm/track/progress.h"

namespace app {

/// As many characters of `text`, which is UTF-8, as fit into `columns`.
[[nodiscard]] std::string cut_to(const std::string& text, int columns);

/// `text` with lines that fit the terminal that a descriptor is, broken between words and indented
/// below their first line; as it is where the descriptor is none.
[[nodiscard]] std::string fitted(const std::string& text, int descriptor);

/// Shows text in the place of what it showed before, and clears it for an empty one; none where
/// standard output, or standard error if that is asked for, is no terminal. For llm::track::Output.
[[nodiscard]] std::function<void(const std::string& text)> live_line(
    int descriptor = STDOUT_FILENO);

/// Standard output with its live line; standard error with its own, where the other is kept for
/// what a verb was called for.
[[nodiscard]] llm::track::Output output_for_people(bool json_on_stdout = false);

/// What a verb is at, told there; null on other ranks than the first, which say nothing.
[[nodiscard]] std::unique_ptr<llm::track::Progress> progress_of(const Rank& rank,
                                                                bool json_on_stdout = false);

/// Columns of the terminal that a descriptor is; otherwise this many.
[[nodiscard]] int terminal_columns(int otherwise, int descriptor = STDOUT_FILENO);
/// Rows of the terminal that standard output is; none where it is none.
[[nodiscard]] std::optional<int> terminal_rows();

}  // namespace app
