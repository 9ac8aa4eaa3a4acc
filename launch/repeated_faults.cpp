#include "launch/repeated_faults.h"

#include <cstddef>

namespace sherd::launch {
namespace {

constexpr std::size_t kMostFaults = 256;  // a flood of them is no start-up fault

// Rank 0 marks the loss of a peer itself; the launcher marks the lines of the others.
std::string_view without_mark(std::string_view line) {
  const std::size_t end = line.find("] ");
  return line.starts_with("[rank ") && end != std::string_view::npos ? line.substr(end + 2) : line;
}

}  // namespace

bool RepeatedFaults::is_repetition(int rank, std::string_view line) {
  line = without_mark(line);
  if (line.starts_with(' ') && repeating_.contains(rank)) {
    return true;
  }
  repeating_.erase(rank);
  const bool is_fault = line.starts_with("sherd: ");
  if (is_fault) {
    speakers_.insert(rank);
  }
  if (!is_fault && !line.starts_with("peer lost: ")) {
    return false;
  }
  const auto known = first_rank_.find(line);
  if (known != first_rank_.end() && known->second != rank) {
    repeating_.insert(rank);
    return true;
  }
  if (first_rank_.size() < kMostFaults) {
    first_rank_.emplace(line, rank);
  }
  return false;
}

}  // namespace sherd::launch
