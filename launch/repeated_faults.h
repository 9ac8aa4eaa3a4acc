#pragma once
// Faults that all ranks report alike, printed once.

#include <map>
#include <set>
#include <string>
#include <string_view>

namespace sherd::launch {

/// Finds lines of standard error that repeat a fault already reported by another rank. A fault is a
/// line that begins with "sherd: " and the lines after it that begin with a space; the loss of a
/// peer, "peer lost: ", is one too.
class RepeatedFaults {
 public:
  /// Called for every line of every rank, in order.
  [[nodiscard]] bool is_repetition(int rank, std::string_view line);
  /// True if this rank has reported its fault: a line that begins with "sherd: ".
  [[nodiscard]] bool has_said(int rank) const { return speakers_.contains(rank); }

 private:
  std::map<std::string, int, std::less<>> first_rank_;  // of each fault
  std::set<int> speakers_;                              // ranks that have said a fault
  std::set<int> repeating_;                             // ranks that are within a repeated one
};

}  // namespace sherd::launch
