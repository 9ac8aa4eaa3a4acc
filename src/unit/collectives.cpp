#include "unit/collectives.h"

#include <vector>

#include "storage/own_work.h"

namespace sherd::detail {

namespace {

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::Construction:
      return "construction";
    case Phase::Forward:
      return "forward";
    case Phase::Backward:
      return "backward";
    case Phase::Optimizer:
      return "the optimizer";
  }
  return "";
}

}  // namespace

void Collectives::compare_with_other_ranks(const char* operation, const std::string& unit) {
  const std::string mine = std::string(operation) + " of unit '" + unit + "', in " +
                           name_of(phase_) + " of step " + std::to_string(step_);
  const std::vector<std::string> all = world_.all_gather(mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      peers_lost_ = true;  // no further collective can succeed
      throw Error(ExitCode::RanksDisagree,
                  "[debug] ranks disagree. Rank 0 is at " + all[0] + "; rank " +
                      std::to_string(rank) + " is at " + all[rank] +
                      ". Every rank must run the same units in the same order.");
    }
  }
}

void Collectives::throw_with_place(const char* operation, const std::string& unit) {
  try {
    throw_on();
  } catch (const Error& error) {
    peers_lost_ = peers_lost_ || error.is_of_peers() || error.code() == ExitCode::RanksDisagree;
    throw Error(error.code(), std::string(operation) + " of unit '" + unit + "', in " +
                                  name_of(phase_) + " of step " + std::to_string(step_) +
                                  ", on rank " + std::to_string(world_.rank()) + " of " +
                                  std::to_string(world_.size()) + ": " + error.what());
  }
}

}  // namespace sherd::detail
