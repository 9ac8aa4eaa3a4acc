#pragma once
// "Did you mean …?"

#include <span>
#include <string>
#include <string_view>

namespace llm::config {

/// Insertions, deletions and replacements of single bytes that turn `a` into `b` (Levenshtein).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate with the fewest edits, the first of several; one that contains the word, or that
/// the word contains, counts as one edit away. Empty if even that one is further than a third of
/// the longer word (but one edit is always near, and two are from four letters on).
[[nodiscard]] std::string nearest_name(std::string_view word,
                                       std::span<const std::string> candidates);

}  // namespace llm::config
