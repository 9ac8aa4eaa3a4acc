#include "unit/collectives.h"

#include <array>
#include <vector>

#include "storage/own_work.h"

namespace sherd::detail {

std::string Collectives::place_of(const char* operation, const std::string& unit) const {
  constexpr std::array kPhases = {"construction", "forward", "backward", "the optimizer"};
  return std::string(operation) + " of unit '" + unit + "', in " +
         kPhases.at(static_cast<size_t>(phase_)) + " of step " + std::to_string(step_);
}

void Collectives::compare_with_other_ranks(const char* operation, const std::string& unit) {
  const std::vector<std::string> all = world_.all_gather(place_of(operation, unit));
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
    throw Error(error.code(), place_of(operation, unit) + ", on rank " +
                                  std::to_string(world_.rank()) + " of " +
                                  std::to_string(world_.size()) + ": " + error.what());
  }
}

}  // namespace sherd::detail
