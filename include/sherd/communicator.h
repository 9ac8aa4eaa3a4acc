#pragma once
// The owner of the memory that ranks exchange. The engine asks it for the addresses of a unit's
// bytes and never moves them itself. The same engine therefore runs over process groups, shared
// memory, and threads of one process. BufferedCommunicator is the base for your own transport.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "sherd/memory.h"

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

namespace detail {
struct CommunicatorMemory;
class BufferPool;
}  // namespace detail

/// Implements everything of a Communicator except the exchanges themselves. It owns the shards in
/// param_dtype, the gradient buffers, the receive buffers, the two reductions in flight and the
/// counts. It notifies the observer, and it checks that all ranks run the same operation.
///
/// A back end implements rank(), world_size(), gathers_in_place() and:
/// - an all-gather: start_gather() and finish_gather();
/// - a gradient exchange: start_exchange() and finish_exchange(). The latter calls
///   check_identities(), then sums this rank's shard with add_piece();
/// - gather_numbers(), the basis of all_reduce() and barrier().
///
/// A back end whose ranks read each other's shards in place also implements finish_reading(),
/// await_readers() and show_published(). The rank's one thread calls these hooks, except
/// interrupt().
class BufferedCommunicator : public Communicator {
 public:
  BufferedCommunicator();
  ~BufferedCommunicator() override;

  void attach(std::vector<SegmentSpec> segments, c10::Device device,
              std::shared_ptr<MemoryLedger> ledger) final;
  [[nodiscard]] void* travelling_shard(Segment segment) final;
  void begin_update(Segment segment) final;
  void publish(Segment segment) final;
  void* gather(Segment segment, void* slot, const GatherEvents& after) final;
  void wait_gather(Segment segment) final;
  void release(Segment segment) final;
  [[nodiscard]] void* acquire_reduce_buffer(Segment segment, const Reduction& target) final;
  void release_reduce_buffer(Segment segment) final;
  void reduce(Segment segment, const Reduction& target) final;
  [[nodiscard]] int reductions_in_flight() const final {
    return static_cast<int>(exchanges_.size());
  }
  void finish_reductions() final;
  void abandon() final;
  void cancel(const std::string& why) final;
  [[nodiscard]] int64_t most_received_bytes() const final;
  void all_reduce(std::span<double> values, ReduceOp op) final;
  void all_reduce_on_device(const at::Tensor& values, ReduceOp op) final;
  void barrier() final;
  [[nodiscard]] double signature() const final;

  /// A rank's report of the operation it runs. Ranks that are out of step would otherwise
  /// sum gradients of different units.
  struct Identity {
    std::uint64_t history = 0;  ///< hash of everything the rank has done so far
    std::int32_t segment = 0;   ///< segment whose gradients these are
    std::int32_t dtype = 0;     ///< dtype of the gradients, as a c10::ScalarType
  };

 protected:
  /// A reduction in flight. Back ends derive from it to add their own state.
  struct Exchange {
    Exchange() = default;
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;
    virtual ~Exchange() = default;
    Segment segment = 0;                             ///< segment whose gradients are reduced
    Reduction target = {};                           ///< destination of the sum
    c10::ScalarType dtype = c10::ScalarType::Float;  ///< dtype of the gradients on the wire
    void* gradients = nullptr;  ///< of the whole segment; read-only if the engine owns them
    bool is_acquired = false;   ///< true if `gradients` is an acquired buffer that must be released
    Identity identity = {};     ///< this rank's identity
    void* received = nullptr;   ///< receive buffer of receive_bytes(); null for 0 bytes
    bool has_ended = false;     ///< set by the back end if the sum is complete already
  };

  /// Starts the all-gather into `slot` and returns the address of the gathered segment. Only back
  /// ends with gathers_on_own_stream() use `after`.
  virtual void* start_gather(Segment segment, void* slot, const GatherEvents& after) = 0;
  /// Blocks until the gathered segment is complete. Called at most once per start_gather(), and not
  /// at all for an all-gather that abandon() drops (see forget_exchanges()).
  virtual void finish_gather(Segment segment) = 0;
  /// Marks the gathered segment as no longer read by this rank.
  virtual void finish_reading(Segment /*segment*/) {}
  /// Blocks until no rank reads this rank's shard any more.
  virtual void await_readers(Segment /*segment*/) {}
  /// Marks this rank's shard as written.
  virtual void show_published(Segment /*segment*/) {}

  /// Returns an empty Exchange of the back end's own type.
  [[nodiscard]] virtual std::unique_ptr<Exchange> make_exchange();
  /// Starts the exchange described by `exchange`. The exchange stays queued even if this throws.
  virtual void start_exchange(Exchange& exchange) = 0;
  /// Blocks until the sum is in its shard and the gradients are no longer read.
  virtual void finish_exchange(Exchange& exchange) = 0;
  /// Returns the receive buffer that an exchange of this segment in this dtype needs, in bytes.
  [[nodiscard]] virtual int64_t receive_bytes(const SegmentSpec& /*spec*/,
                                              c10::ScalarType /*dtype*/) const {
    return 0;
  }
  /// Returns the dtype on the wire for gradients of `dtype`. Counts::bytes_sent uses it.
  [[nodiscard]] virtual c10::ScalarType sent_dtype(const SegmentSpec& /*spec*/,
                                                   c10::ScalarType dtype) const {
    return dtype;
  }
  /// Returns the address where operators may write gradients that need no exchange, or null.
  [[nodiscard]] virtual void* place_of_sum(Segment /*segment*/, const Reduction& /*target*/) {
    return nullptr;
  }

  /// Returns true if SegmentSpec::piece is supported, that is, if no other rank reads shards in
  /// place.
  [[nodiscard]] virtual bool takes_pieces() const { return false; }
  /// Returns true if SegmentSpec::piece_in_slot is supported as the source of an all-gather.
  [[nodiscard]] virtual bool takes_pieces_in_slots() const { return false; }

  /// Sets all[rank × mine.size() + i] to mine[i] of each rank.
  virtual void gather_numbers(std::span<const double> mine, std::span<double> all) = 0;
  /// Returns each rank's `mine` ([n], double) as one tensor [world_size, n] on the device, in the
  /// order of the current stream. Returns an undefined tensor if the back end exchanges numbers on
  /// the host.
  [[nodiscard]] virtual at::Tensor gather_on_device(const at::Tensor& mine);

  /// Returns memory for shards and gradients on the device given to attach(). For the built-in back
  /// ends.
  [[nodiscard]] virtual std::shared_ptr<detail::CommunicatorMemory> allocate();
  /// Publishes the memory to the other ranks, after its allocation. Collective.
  virtual void share_memory() {}
  /// Interrupts the wait of the rank's own thread. Called once, from any thread.
  virtual void interrupt(const std::string& /*why*/) {}
  /// Drops this rank's exchanges.
  virtual void forget_exchanges() {}

  /// Returns the world rank of a group member, for messages.
  [[nodiscard]] virtual int rank_of_world(int member) const { return member; }

  // Helpers for back ends.
  /// Returns the segments given to attach(), by number.
  [[nodiscard]] const std::vector<SegmentSpec>& segments() const { return segments_; }
  /// Returns one segment.
  [[nodiscard]] const SegmentSpec& spec(Segment segment) const {
    return segments_[static_cast<size_t>(segment)];
  }
  /// Returns the device that holds shards and gradients.
  [[nodiscard]] c10::Device device() const { return device_; }
  /// Returns the ledger that counts the buffers.
  [[nodiscard]] const std::shared_ptr<MemoryLedger>& ledger() const { return ledger_; }
  /// Returns the memory that buffers come from. For the built-in back ends.
  [[nodiscard]] const std::shared_ptr<detail::CommunicatorMemory>& memory() const {
    return memory_;
  }
  /// Returns the exchanges in flight, oldest first.
  [[nodiscard]] const std::deque<std::unique_ptr<Exchange>>& exchanges() const {
    return exchanges_;
  }
  /// Returns the size in bytes of the largest gradient shard of a block; 0 if there are only root
  /// units.
  [[nodiscard]] int64_t block_piece_bytes() const { return block_piece_bytes_; }
  /// Returns a readable name, such as "all-gather of unit 'block3'".
  [[nodiscard]] std::string described(Collective::Operation operation, Segment segment) const;
  /// Throws Error(RanksDisagree) unless all group ranks report the same identity as this rank.
  void check_identities(const Exchange& exchange, std::span<const Identity> by_rank) const;
  /// Sums the ranks' gradients into the shard, or adds them to it, from element `first` on.
  /// `sources`, indexed by rank, hold `numel` elements each in the dtype on the wire. Callers
  /// process the ranges of a shard in order.
  void add_piece(const Exchange& exchange, const std::vector<const void*>& sources, int64_t first,
                 int64_t numel) const;

 private:
  enum class Gathered : std::uint8_t { Not, Asked, Readable };
  struct SegmentState {
    Gathered gathered = Gathered::Not;
    void* gradients = nullptr;  ///< the acquired buffer
    bool from_pool = false;     ///< true if the buffer returns to the pool
  };
  [[nodiscard]] SegmentState& state(Segment segment) {
    return states_[static_cast<size_t>(segment)];
  }
  [[nodiscard]] Collective collective(Collective::Operation operation, Segment segment,
                                      int64_t bytes) const;
  void tell(void (CollectiveObserver::*event)(const Collective&), Collective::Operation operation,
            Segment segment, int64_t bytes) const;
  void check_not_cancelled() const;
  void reduce_numbers(std::span<double> values, ReduceOp op, Collective::Operation operation);
  void fill(Exchange& exchange, Segment segment, const Reduction& target);
  [[nodiscard]] int64_t sent_bytes(Segment segment, const Reduction& target) const;
  void make_room();
  void finish_oldest();
  void retire(std::unique_ptr<Exchange> exchange);

  std::vector<SegmentSpec> segments_;
  std::vector<SegmentState> states_;
  c10::Device device_ = c10::Device(c10::kCPU);
  std::shared_ptr<MemoryLedger> ledger_;
  int64_t block_piece_bytes_ = 0;
  std::shared_ptr<detail::CommunicatorMemory> memory_;
  std::unique_ptr<detail::BufferPool> receive_pool_;
  std::deque<std::unique_ptr<Exchange>> exchanges_;
  std::vector<std::unique_ptr<Exchange>> given_up_;  ///< the back end may still use their memory
  std::atomic<bool> cancelled_ = false;
  mutable std::mutex why_mutex_;
  std::string why_;  ///< reason given to cancel()
};

}  // namespace sherd
