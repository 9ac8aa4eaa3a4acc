#include "launch/repeated_faults.h"

namespace sherd::launch {
namespace {

constexpr std::size_t kMostFaults = 256;  // a flood of them is no start-up fault

}  // namespace

bool RepeatedFaults::is_repetition(int rank, std::string_view line) {
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
