#pragma once
// Several rendezvous in one store.

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace sherd::detail {

/// A rendezvous among those of a store that outlives them: torchrun's agent serves the same one
/// each time it starts the ranks again, and all that earlier ranks said is still there. How often
/// they were started is no name for it: the agents of several hosts may count differently. Rank 0
/// makes one up and tells it to each rank that asks, with the rank's own random word, so that
/// nobody takes an old answer for its own.
class Round {
 public:
  Round(c10d::Store& store, int rank, int world_size);

  /// Asks and answers; to be called again and again until all have met. The name; empty until rank
  /// 0 has answered.
  const std::string& look();

 private:
  void answer(int rank);
  void hear();

  c10d::Store& store_;
  int rank_;
  std::string word_;                   ///< this rank's
  std::vector<std::string> answered_;  ///< on rank 0: words of the others
  std::string name_;
};

}  // namespace sherd::detail
