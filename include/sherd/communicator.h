#pragma once
// The owner of the memory that travels between ranks. The engine asks it where a
// unit's bytes lie and never moves them itself, so that process groups, shared memory and threads
// in one process serve the same engine.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "sherd/collective_observer.h"
#include "sherd/memory.h"

namespace at {
class Tensor;
}
namespace c10 {
struct Event;
}

namespace sherd {

/// One flat segment of a unit, as the communicator sees it: `world_size` equal pieces, one a rank.
struct SegmentSpec {
  std::string name;         ///< of the unit, for messages
  int64_t shard_numel = 0;  ///< elements of one piece, padding included; a multiple of 64 bytes
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< in which parameters and gradients travel
  bool trainable = true;  ///< a frozen segment is gathered but never reduced
  bool is_root = false;   ///< of the root unit: kept out of the slots that blocks share
  MemoryKind shard_kind = MemoryKind::TravellingShard;  ///< what this rank's piece counts as
  /// Where this rank's piece lies, where that is the engine's memory (Offload): it may be read from
  /// gather() to wait_gather(), or, where gathers are in place, from wait_gather() to release().
  /// Null: it is the communicator's.
  void* piece = nullptr;
  /// Of the sums of its gradients (Reduction::dtype); what a collective that sums itself is given.
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;
  /// The engine keeps this rank's shard (Offload::parameters_on_host) and copies it to its range of
  /// the slot, before gather() and the events that gather() is given. gather() is then given a slot
  /// even if gathers are in place, and that slot holds the gathered segment. travelling_shard() is
  /// null then; a communicator without support for it returns a shard of its own.
  bool piece_in_slot = false;
};

/// What a gather waits for on a device, if Communicator::gathers_on_own_stream(). Both events live
/// until gather() returns. Null: the gather waits for all earlier work of the current stream.
struct GatherEvents {
  const c10::Event* written = nullptr;    ///< recorded after the last write to the shards
  const c10::Event* slot_free = nullptr;  ///< recorded after the last use of the slot
};

/// How all_reduce() joins the values of the ranks. PyTorch: `ReduceOp`.
enum class ReduceOp { Sum, Max };

/// Collectives over the ranks of a mesh and the buffers they work on.
///
/// Every method but the accessors is collective: all ranks call it for the same segment in the same
/// order. Throws Error, naming the operation: RanksDisagree where calls of different segments,
/// dtypes or histories meet; Hang where a rank is silent for longer than the timeout; PeerLost
/// where one has ended. Methods are called from one thread a rank, but for cancel(). Buffers are
/// entered in the model's ledger, so that the engine's memory limits cover them. To bring another
/// exchange, derive from BufferedCommunicator and give only the start and the end of each. PyTorch:
/// `Comm` of FSDP2's custom all-gather and reduce-scatter.
class Communicator {
 public:
  /// Number of a segment: its place in what attach() was given.
  using Segment = int;

  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  /// This rank's number, from 0.
  [[nodiscard]] virtual int rank() const = 0;
  /// Ranks that take part, and pieces of each segment.
  [[nodiscard]] virtual int world_size() const = 0;
  /// What carries the bytes, for people: "shared memory".
  [[nodiscard]] virtual std::string transport() const { return "a communicator of the caller's"; }

  /// Registers the segments of a model, all at once, and allocates what travels. Called once,
  /// before anything else. Throws Error(OutOfMemory) on the rank that lacks the memory; over shared
  /// memory Error(Unavailable) on all ranks.
  virtual void attach(std::vector<SegmentSpec> segments, c10::Device device,
                      std::shared_ptr<MemoryLedger> ledger) = 0;

  /// This rank's piece in the dtype that travels; written by the optimizer between begin_update()
  /// and publish().
  [[nodiscard]] virtual void* travelling_shard(Segment segment) = 0;
  /// Waits until no rank reads the piece any more, so that it may be written.
  virtual void begin_update(Segment segment) = 0;
  /// The piece has been written; later gathers see it.
  virtual void publish(Segment segment) = 0;

  /// Whether gather() needs memory to gather into. Where it does not, gathered segments have
  /// addresses of their own.
  [[nodiscard]] virtual bool gathers_in_place() const = 0;
  /// Of how many ranks' pieces a gathered segment takes memory on this rank: none where ranks share
  /// memory, and only those that it receives itself where hosts do.
  [[nodiscard]] virtual int gathered_pieces() const {
    return gathers_in_place() ? 0 : world_size();
  }
  /// Whether gather() runs on a stream of its own and waits for the events it is given. Otherwise
  /// it runs on the current stream, after all earlier work there, and ignores them. Not collective.
  [[nodiscard]] virtual bool gathers_on_own_stream() const { return false; }
  /// What is given to the device from now on, until end_capture(), is kept for a graph: streams of
  /// the communicator's own follow the current one. Nothing is under way. Not collective. Nothing
  /// to communicators that have no streams.
  virtual void begin_capture() {}
  /// The current stream follows them again. Not collective.
  virtual void end_capture() {}
  /// Starts to gather a segment into `slot` (world_size shards; null if gathers_in_place(), except
  /// for SegmentSpec::piece_in_slot) when `after` has been reached, and returns the address of the
  /// gathered segment. Its bytes may be read after wait_gather().
  virtual void* gather(Segment segment, void* slot, const GatherEvents& after) = 0;
  /// Returns when the segment lies gathered where gather() said.
  virtual void wait_gather(Segment segment) = 0;
  /// The gathered segment is not read any more; every gather() is followed by one.
  virtual void release(Segment segment) = 0;

  /// Where gradients go. `shard` is this rank's sum, `accumulate` says whether it holds one
  /// already.
  struct Reduction {
    void* shard = nullptr;    ///< shard_numel values of `dtype`
    bool accumulate = false;  ///< add to them; else they are overwritten
    float scale = 1.0F;       ///< each rank's gradient is multiplied by it
    /// fp32 gradients of the whole segment, to be reduced instead of an acquired buffer. They must
    /// stay until the reduction has finished.
    const float* source = nullptr;
    /// Where not null: becomes the sum of squares of what `shard` then holds, or NaN. A
    /// communicator that does not see the values while they are added up leaves it alone.
    double* squares = nullptr;
    c10::ScalarType dtype = c10::ScalarType::Float;  ///< or BFloat16: each sum is rounded to it
  };
  /// Memory for the gradients of a whole segment, in its dtype, contents undefined. Not collective,
  /// but may wait for an earlier reduction.
  [[nodiscard]] virtual void* acquire_reduce_buffer(Segment segment, const Reduction& target) = 0;
  /// Gives back the buffer acquired last for the segment, unreduced. Not collective.
  virtual void release_reduce_buffer(Segment segment) = 0;
  /// Starts the reduction of the buffer acquired last for the segment, or of `target.source`: shard
  /// (+)= g of rank 0, + g of rank 1, … in fp32 and in rank order. Reductions end in the order in
  /// which they were started; the sum is there after finish_reductions().
  virtual void reduce(Segment segment, const Reduction& target) = 0;
  /// How many of the last reductions have not ended; the same on every rank at the same point of
  /// the program. Not collective.
  [[nodiscard]] virtual int reductions_in_flight() const = 0;
  /// Returns when the sums of all reductions that were started are in their shards.
  virtual void finish_reductions() = 0;
  /// Forgets gathers and reductions that an exception left behind, when those under way have ended;
  /// after cancel() without waiting for them.
  virtual void abandon() = 0;
  /// Ends this rank's part for good: what it waits for here, and whatever is called later but
  /// abandon() and release(), throws Error(PeerLost) with `why`. Ranks that wait for this one fail
  /// as if it had left, or when their timeout has passed. Does nothing unless a back end overrides
  /// it. Where the back end cannot be interrupted (Gloo), a wait under way ends at its timeout. Not
  /// collective; any thread may call it.
  virtual void cancel(const std::string& /*why*/) {}
  /// The most bytes of MemoryKind::ReceiveBuffer that reductions will take. Not collective.
  [[nodiscard]] virtual int64_t most_received_bytes() const { return 0; }

  /// Reduces each value over the ranks, in rank order, so that all ranks hold the same bits.
  virtual void all_reduce(std::span<double> values, ReduceOp op) = 0;
  /// The same for `values`, double [n] on the device that attach() was given: in the order of the
  /// calling thread's current stream, without a wait of the host. Communicators that do not
  /// override it exchange on the host, with a copy there and back, and there the host waits.
  virtual void all_reduce_on_device(const at::Tensor& values, ReduceOp op);
  /// Returns when all ranks have called it.
  virtual void barrier() = 0;
  /// Calls `wait`, in which the host waits for a device, and throws what an exchange has failed
  /// with whose end the host did not wait for: what such a one has left is not to be used. Not
  /// collective.
  virtual void check_exchanges(const std::function<void()>& wait) const { wait(); }

  /// What this rank has done in it so far, as a whole number: the same on ranks that have run the
  /// same in the same order. Those whose exchanges compare nothing by themselves (NCCL) are asked
  /// before each update. Not collective.
  [[nodiscard]] virtual double signature() const { return 0; }

  /// How often each collective ran since construction, for tests and reports; over one rank nothing
  /// is counted.
  struct Counts {
    int64_t gathers = 0;       ///< of segments of parameters
    int64_t reductions = 0;    ///< of segments of gradients, over the shard group
    int64_t replications = 0;  ///< of sums of gradients, over the replicas
    int64_t all_reduces = 0;   ///< of numbers, and barriers
    /// Of parameters and gradients, by this rank to others; a gather in place sends none.
    int64_t bytes_sent = 0;
    int64_t operations = 0;     ///< all that other ranks have to do as well
    std::uint64_t history = 0;  ///< which they were, in order, in one number
    /// How much of each there is since `before`.
    [[nodiscard]] Counts since(const Counts& before) const noexcept;
  };
  /// What this rank has done so far.
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  /// A graph runs again, of a capture that counted this; observers are not told.
  void count_again(const Counts& captured) noexcept;

  /// Who is told of this communicator's collectives from now on; null for nobody. Not collective.
  virtual void set_observer(std::shared_ptr<CollectiveObserver> observer) {
    observer_ = std::move(observer);
  }

 protected:
  Counts counts_;                                      ///< kept by the implementation
  std::shared_ptr<CollectiveObserver> observer_ = {};  ///< told by the implementation
};

}  // namespace sherd
