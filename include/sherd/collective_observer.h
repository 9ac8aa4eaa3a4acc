#pragma once
// An outside view of every collective of a rank: for tests, logs and hang detection.

#include <cstdint>
#include <string>

namespace sherd {

/// One collective, as reported to an observer.
struct Collective {
  /// The kind of collective.
  enum class Operation : std::uint8_t {
    Attach,     ///< a communicator gets the segments of a model and allocates memory
    Gather,     ///< all-gather of one parameter segment, from gather() to wait_gather()
    Reduction,  ///< reduction of one gradient segment, from reduce() until the sum is complete
    Update,     ///< wait until no rank reads a segment that is about to be written
    AllReduce,  ///< reduction of numbers over all ranks
    Barrier,    ///< barrier of a communicator or the World
    Connect,    ///< creation of a communicator
    Texts,      ///< World::all_gather()
    Broadcast,  ///< World::broadcast()
    Send,       ///< World::send()
  };
  Operation operation = Operation::Barrier;  ///< kind of collective
  int segment = -1;                          ///< segment number in the model; -1 if none
  std::string unit = {};                     ///< name of the segment's unit; empty if none
  /// This rank's bytes: its shard for a gather, the other ranks' shards for a reduction, its
  /// numbers or its text otherwise. For a broadcast the whole message. For World::send() the whole
  /// message on the two ranks, 0 on the others.
  std::int64_t bytes = 0;
  int ranks = 1;   ///< ranks in a communicator's collective; 1 for the World's own
  int stride = 1;  ///< distance between the ranks, as world ranks
};

/// Returns the readable name: "all-gather".
[[nodiscard]] const char* name_of(Collective::Operation operation);

/// Receives an event for each collective of one rank, in order, on the thread that calls the
/// collective. If started() or waiting() throws, the collective fails on this rank as it would
/// after a network failure. A failed collective produces no further event. PyTorch: the flight
/// recorder of a process group.
class CollectiveObserver {
 public:
  CollectiveObserver() = default;
  CollectiveObserver(const CollectiveObserver&) = delete;
  CollectiveObserver& operator=(const CollectiveObserver&) = delete;
  virtual ~CollectiveObserver() = default;
  /// Called before the collective begins.
  virtual void started(const Collective& /*collective*/) {}
  /// Called when the rank needs the result; the rank may then wait for the others.
  virtual void waiting(const Collective& /*collective*/) {}
  /// Called when the result is complete. Must not throw.
  virtual void ended(const Collective& /*collective*/) {}
};

}  // namespace sherd
