#pragma once
// The owner of the memory that ranks exchange. The engine asks it for the addresses of a unit's
// bytes and never moves them itself. The same engine therefore runs over process groups, shared
// memory, and threads of one process.

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

/// One flat segment of a unit, as the communicator sees it: `world_size` equal shards, one per
/// rank.
struct SegmentSpec {
  std::string name;         ///< name of the unit, for messages
  int64_t shard_numel = 0;  ///< elements per shard with padding; a multiple of 64 bytes
  c10::ScalarType dtype = c10::ScalarType::Float;  ///< of parameters and gradients when sent
  bool trainable = true;  ///< false for a frozen segment: gathered, never reduced
  bool is_root = false;   ///< true for the root unit: it does not use the slots that blocks share
  MemoryKind shard_kind = MemoryKind::TravellingShard;  ///< ledger kind of this rank's shard
  /// Address of this rank's shard if the engine owns it (Offload); null if the communicator owns
  /// it. It may be read from gather() to wait_gather(); if gathers are in place, from wait_gather()
  /// to release().
  void* piece = nullptr;
  /// Dtype of the gradient sums (Reduction::dtype). A transport that sums by itself receives
  /// gradients in it.
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;
  /// True if the engine keeps this rank's shard (Offload::parameters_on_host). The engine then
  /// copies the shard to its range of the slot before gather() and the events that gather()
  /// receives. That call always passes a slot, even if gathers are in place, and the slot holds the
  /// gathered segment. Then travelling_shard() returns null; a communicator without support for it
  /// returns a shard of its own.
  bool piece_in_slot = false;
};

/// Device events that a gather waits for, if Communicator::gathers_on_own_stream(). Both events
/// live until gather() returns. Null: the gather waits for all earlier work of the current stream.
struct GatherEvents {
  const c10::Event* written = nullptr;    ///< recorded after the last write to the shards
  const c10::Event* slot_free = nullptr;  ///< recorded after the last use of the slot
};

/// The reduction that all_reduce() applies. PyTorch: `ReduceOp`.
enum class ReduceOp { Sum, Max };

/// Collectives over the ranks of a mesh, and the buffers they work on.
///
/// Every method except the accessors is collective: all ranks call it for the same segment in the
/// same order. Throws Error, naming the operation:
/// - RanksDisagree if ranks call it with different segments, dtypes or histories;
/// - Hang if a rank is silent for longer than the timeout;
/// - PeerLost if a rank has ended.
///
/// One thread per rank calls the methods; any thread may call cancel(). Buffers are counted in the
/// model's ledger, so the engine's memory limits cover them. To add a transport, derive from
/// BufferedCommunicator and implement the start and the end of each exchange. PyTorch: `Comm` of
/// FSDP2's custom all-gather and reduce-scatter.
class Communicator {
 public:
  /// Number of a segment: its index in the vector given to attach().
  using Segment = int;

  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  /// Returns this rank, from 0.
  [[nodiscard]] virtual int rank() const = 0;
  /// Returns the number of ranks, which is also the number of shards per segment.
  [[nodiscard]] virtual int world_size() const = 0;
  /// Returns a readable name of the transport: "shared memory".
  [[nodiscard]] virtual std::string transport() const { return "a communicator of the caller's"; }

  /// Registers all segments of a model at once and allocates their memory. Must be called once,
  /// before any other method. Throws Error(OutOfMemory) on the rank that lacks memory; over shared
  /// memory Error(Unavailable) on all ranks.
  virtual void attach(std::vector<SegmentSpec> segments, c10::Device device,
                      std::shared_ptr<MemoryLedger> ledger) = 0;

  /// Returns this rank's shard in param_dtype. The optimizer writes it between begin_update() and
  /// publish().
  [[nodiscard]] virtual void* travelling_shard(Segment segment) = 0;
  /// Blocks until no rank reads the shard any more, so that it may be written.
  virtual void begin_update(Segment segment) = 0;
  /// Publishes the written shard to later gathers.
  virtual void publish(Segment segment) = 0;

  /// Returns true if gather() needs no memory of its own: gathered segments then have their own
  /// addresses.
  [[nodiscard]] virtual bool gathers_in_place() const = 0;
  /// Returns how many shards a gathered segment occupies in this rank's memory: none if all ranks
  /// share memory; only the received ones if the ranks of a host share memory.
  [[nodiscard]] virtual int gathered_pieces() const {
    return gathers_in_place() ? 0 : world_size();
  }
  /// Returns true if gather() runs on its own stream and waits for the given events. Otherwise it
  /// runs on the current stream, after all earlier work there, and ignores them. Not collective.
  [[nodiscard]] virtual bool gathers_on_own_stream() const { return false; }
  /// Begins a graph capture: until end_capture(), the communicator's own streams follow the current
  /// stream. No exchange may be in flight. Does nothing for communicators without streams. Not
  /// collective.
  virtual void begin_capture() {}
  /// Ends the capture; the current stream follows the communicator's streams again. Not collective.
  virtual void end_capture() {}
  /// Starts the all-gather of a segment into `slot` after the events in `after`, and returns the
  /// address of the gathered segment. `slot` holds world_size shards; it is null if
  /// gathers_in_place(), except for SegmentSpec::piece_in_slot. The bytes may be read after
  /// wait_gather().
  virtual void* gather(Segment segment, void* slot, const GatherEvents& after) = 0;
  /// Blocks until the segment is gathered at the address that gather() returned.
  virtual void wait_gather(Segment segment) = 0;
  /// Marks the gathered segment as no longer read. Every gather() is followed by one release().
  virtual void release(Segment segment) = 0;

  /// Destination and mode of a gradient reduction.
  struct Reduction {
    void* shard = nullptr;    ///< this rank's sum: shard_numel values of `dtype`
    bool accumulate = false;  ///< true: add to the shard; false: overwrite it
    float scale = 1.0F;       ///< factor on each rank's gradient
    /// If not null: fp32 gradients of the whole segment, reduced instead of an acquired buffer.
    /// They must stay valid until the reduction has finished.
    const float* source = nullptr;
    /// If not null: receives the sum of squares of the final shard, or NaN. A communicator that
    /// does not see the values while it sums them leaves it unchanged.
    double* squares = nullptr;
    /// Dtype of the sum: Float, or BFloat16, which rounds each sum.
    c10::ScalarType dtype = c10::ScalarType::Float;
  };
  /// Returns memory for the gradients of a whole segment, in its dtype, with undefined contents.
  /// Not collective, but may block on an earlier reduction.
  [[nodiscard]] virtual void* acquire_reduce_buffer(Segment segment, const Reduction& target) = 0;
  /// Releases the last acquired buffer of the segment without a reduction. Not collective.
  virtual void release_reduce_buffer(Segment segment) = 0;
  /// Starts the reduction of the last acquired buffer of the segment, or of `target.source`. It
  /// computes shard (+)= g of rank 0 + g of rank 1 + … in fp32 and in rank order. Reductions end in
  /// the order in which they started; finish_reductions() waits for their sums.
  virtual void reduce(Segment segment, const Reduction& target) = 0;
  /// Returns how many of the last reductions have not ended. All ranks get the same number at the
  /// same point of the program. Not collective.
  [[nodiscard]] virtual int reductions_in_flight() const = 0;
  /// Blocks until the sums of all started reductions are in their shards.
  virtual void finish_reductions() = 0;
  /// Drops the gathers and reductions that an exception left behind. Blocks until those in flight
  /// have ended; after cancel() it does not wait.
  virtual void abandon() = 0;
  /// Ends this rank's participation for good. Its current wait, and every later call except
  /// abandon() and release(), throws Error(PeerLost) with `why`. Ranks that wait for this one fail
  /// as if it had exited, or at their timeout. Does nothing by default. If the back end cannot be
  /// interrupted (Gloo), a current wait ends at its timeout. Not collective; any thread may call
  /// it.
  virtual void cancel(const std::string& /*why*/) {}
  /// Returns the maximum bytes of MemoryKind::ReceiveBuffer that reductions will use. Not
  /// collective.
  [[nodiscard]] virtual int64_t most_received_bytes() const { return 0; }

  /// Reduces each value over the ranks, in rank order, so that all ranks hold the same bits.
  virtual void all_reduce(std::span<double> values, ReduceOp op) = 0;
  /// Reduces `values` (double [n] on the device given to attach()) in the order of the calling
  /// thread's current stream; the host does not wait. The default copies to the host, exchanges
  /// there and copies back; the host waits then.
  virtual void all_reduce_on_device(const at::Tensor& values, ReduceOp op);
  /// Blocks until all ranks have called it.
  virtual void barrier() = 0;
  /// Calls `wait`, in which the host waits for a device, then throws the error of any exchange that
  /// failed on the device meanwhile. Results of a failed exchange must not be used. Not collective.
  virtual void check_exchanges(const std::function<void()>& wait) const { wait(); }

  /// Returns a hash of what this rank has done in this communicator, as a whole number: equal on
  /// ranks that ran the same operations in the same order. The engine compares it before each
  /// update if the exchanges compare nothing by themselves (NCCL). Not collective.
  [[nodiscard]] virtual double signature() const { return 0; }

  /// Number of collectives since construction, for tests and reports. A group of one rank counts
  /// nothing.
  struct Counts {
    int64_t gathers = 0;       ///< all-gathers of parameter segments
    int64_t reductions = 0;    ///< reductions of gradient segments over the shard group
    int64_t replications = 0;  ///< reductions of gradient sums over the replicas
    int64_t all_reduces = 0;   ///< all-reduces of numbers, and barriers
    /// Parameter and gradient bytes that this rank sent to others; a gather in place sends none.
    int64_t bytes_sent = 0;
    int64_t operations = 0;     ///< operations that the other ranks must run as well
    std::uint64_t history = 0;  ///< hash of these operations in order
    /// Returns the difference to `before`.
    [[nodiscard]] Counts since(const Counts& before) const noexcept;
  };
  /// Returns the counts of this rank so far.
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  /// Adds the counts of a captured graph when it runs again; observers are not notified.
  void count_again(const Counts& captured) noexcept;

  /// Sets the observer of this communicator's collectives from now on; null removes it. Not
  /// collective.
  virtual void set_observer(std::shared_ptr<CollectiveObserver> observer) {
    observer_ = std::move(observer);
  }

 protected:
  Counts counts_;                                      ///< updated by the implementation
  std::shared_ptr<CollectiveObserver> observer_ = {};  ///< notified by the implementation
};

}  // namespace sherd
