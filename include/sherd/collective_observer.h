#pragma once
// A look at every collective of a rank from outside: for tests, logs, and whoever watches for ranks
// that hang.

#include <cstdint>
#include <string>

namespace sherd {

/// One collective, as an observer is told of it.
struct Collective {
  /// What is done.
  enum class Operation : std::uint8_t {
    Attach,     ///< a communicator gets the segments of a model, and its memory
    Gather,     ///< of a segment of parameters: from gather() to wait_gather()
    Reduction,  ///< of a segment of gradients: from reduce() until its sum is there
    Update,     ///< waiting until no rank reads a segment that is to be written
    AllReduce,  ///< of numbers
    Barrier,    ///< of a communicator or the World
    Connect,    ///< a communicator is made
    Texts,      ///< World::all_gather()
    Broadcast,  ///< World::broadcast()
    Send,       ///< World::send()
  };
  Operation operation = Operation::Barrier;  ///< what is done
  int segment = -1;                          ///< its number in the model; -1 where there is none
  std::string unit = {};                     ///< the segment's; empty where there is none
  std::int64_t bytes = 0;  ///< this rank's part: its piece for a gather, the other ranks' pieces
                           ///< for a reduction, its numbers or its text; of a broadcast the whole;
                           ///< of World::send() the whole on the two ranks, 0 on the others
  int ranks = 1;   ///< of a communicator's collective: how many take part; 1 for the World's own
  int stride = 1;  ///< between their numbers in the World
};

/// Its name for people: "all-gather".
[[nodiscard]] const char* name_of(Collective::Operation operation);

/// Is told of each collective of one rank, on the thread that calls it and in its order. What
/// started() or waiting() throws ends the collective on this rank, as a failure of the network
/// would. Of one that fails, nothing more is told. PyTorch: the flight recorder of a process group.
class CollectiveObserver {
 public:
  CollectiveObserver() = default;
  CollectiveObserver(const CollectiveObserver&) = delete;
  CollectiveObserver& operator=(const CollectiveObserver&) = delete;
  virtual ~CollectiveObserver() = default;
  /// It is about to begin.
  virtual void started(const Collective& /*collective*/) {}
  /// The rank needs its result, and waits for the others if need be.
  virtual void waiting(const Collective& /*collective*/) {}
  /// Its result is there. Must not throw.
  virtual void ended(const Collective& /*collective*/) {}
};

}  // namespace sherd
