#pragma once
// The common part of all communicators. A new transport adds only the start and the end of each
// exchange.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "sherd/communicator.h"

namespace sherd {

namespace detail {
struct CommunicatorMemory;
class ReceivePool;
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
    Buffer received = {};       ///< receive buffer of receive_bytes()
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
  std::unique_ptr<detail::ReceivePool> receive_pool_;
  std::deque<std::unique_ptr<Exchange>> exchanges_;
  std::vector<std::unique_ptr<Exchange>> given_up_;  ///< the back end may still use their memory
  std::atomic<bool> cancelled_ = false;
  mutable std::mutex why_mutex_;
  std::string why_;  ///< reason given to cancel()
};

}  // namespace sherd
