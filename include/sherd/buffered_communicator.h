#pragma once
// What communicators have in common, written once: another exchange adds only the start and the end
// of each.

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

/// Keeps the travelling shards, the buffers of gradients, the two reductions that are in flight and
/// what they receive into, the counts; tells the observer; and compares what the ranks say they do.
///
/// A back end has rank(), world_size() and gathers_in_place(), and gives:
/// - a gather: start_gather() and finish_gather();
/// - an exchange of gradients: start_exchange() and finish_exchange(), which adds up this rank's
///   piece with add_piece() and before that calls check_identities();
/// - gather_numbers(), which all_reduce() and barrier() are made of.
/// Where shards are read in place by other ranks: finish_reading(), await_readers() and
/// show_published() too. Hooks are called from the rank's one thread, but for interrupt().
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

  /// What a rank says that it does: ranks that are out of step would add up each other's units.
  struct Identity {
    std::uint64_t history = 0;  ///< all that it has done so far, in one number
    std::int32_t segment = 0;   ///< whose gradients these are
    std::int32_t dtype = 0;     ///< theirs, as a c10::ScalarType
  };

 protected:
  /// A reduction under way. Back ends derive from it what they need to know.
  struct Exchange {
    Exchange() = default;
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;
    virtual ~Exchange() = default;
    Segment segment = 0;                             ///< whose gradients
    Reduction target = {};                           ///< where they go
    c10::ScalarType dtype = c10::ScalarType::Float;  ///< in which they travel
    void* gradients = nullptr;  ///< of all ranks' pieces; only read, where they are the engine's
    bool is_acquired = false;   ///< whether they lie in a buffer that is to be given back
    Identity identity = {};     ///< this rank's
    Buffer received = {};       ///< of receive_bytes()
    bool has_ended = false;     ///< set by the back end where the sum is there already
  };

  /// Starts to gather into `slot`; returns the address of the gathered segment. `after` is for back
  /// ends with gathers_on_own_stream().
  virtual void* start_gather(Segment segment, void* slot, const GatherEvents& after) = 0;
  /// Returns when it lies there. Called at most once after each start_gather(); not for a gather
  /// that abandon() gives up: see forget_exchanges().
  virtual void finish_gather(Segment segment) = 0;
  /// What was gathered is not read any more.
  virtual void finish_reading(Segment /*segment*/) {}
  /// Returns when no rank reads this rank's shard any more.
  virtual void await_readers(Segment /*segment*/) {}
  /// The shard has been written.
  virtual void show_published(Segment /*segment*/) {}

  /// An empty one, of the back end's own kind.
  [[nodiscard]] virtual std::unique_ptr<Exchange> make_exchange();
  /// Starts the exchange that was filled in. It stays in the queue also where this throws.
  virtual void start_exchange(Exchange& exchange) = 0;
  /// Returns when the sum is in its shard and the gradients are not read any more.
  virtual void finish_exchange(Exchange& exchange) = 0;
  /// What an exchange of this segment in this dtype receives into, in bytes.
  [[nodiscard]] virtual int64_t receive_bytes(const SegmentSpec& /*spec*/,
                                              c10::ScalarType /*dtype*/) const {
    return 0;
  }
  /// In which dtype gradients of `dtype` go to other ranks; what Counts::bytes_sent is counted in.
  [[nodiscard]] virtual c10::ScalarType sent_dtype(const SegmentSpec& /*spec*/,
                                                   c10::ScalarType dtype) const {
    return dtype;
  }
  /// Where operators may write gradients that need no exchange; null where there is no such place.
  [[nodiscard]] virtual void* place_of_sum(Segment /*segment*/, const Reduction& /*target*/) {
    return nullptr;
  }

  /// Whether a piece may lie where SegmentSpec::piece says: no other rank reads it in place.
  [[nodiscard]] virtual bool takes_pieces() const { return false; }
  /// Whether it gathers from where SegmentSpec::piece_in_slot says.
  [[nodiscard]] virtual bool takes_pieces_in_slots() const { return false; }

  /// all[rank × mine.size() + i] = mine[i] of each rank.
  virtual void gather_numbers(std::span<const double> mine, std::span<double> all) = 0;
  /// The same on the device, in the order of the current stream: all [world_size, n] of each rank's
  /// `mine` [n], double. An undefined tensor where the back end exchanges numbers on the host.
  [[nodiscard]] virtual at::Tensor gather_on_device(const at::Tensor& mine);

  /// Memory for shards and gradients; the model's, as attach() was told. For the back ends that are
  /// built in.
  [[nodiscard]] virtual std::shared_ptr<detail::CommunicatorMemory> allocate();
  /// Memory is there: the others may be told. Collective.
  virtual void share_memory() {}
  /// Ends what the rank's own thread waits for; called from any thread, once.
  virtual void interrupt(const std::string& /*why*/) {}
  /// This rank's exchanges are forgotten.
  virtual void forget_exchanges() {}

  /// The rank of the world at a place of the group, for messages.
  [[nodiscard]] virtual int rank_of_world(int member) const { return member; }

  // What back ends may use.
  /// The segments that it was made with, by number.
  [[nodiscard]] const std::vector<SegmentSpec>& segments() const { return segments_; }
  /// One of them.
  [[nodiscard]] const SegmentSpec& spec(Segment segment) const {
    return segments_[static_cast<size_t>(segment)];
  }
  /// Where shards and gradients lie.
  [[nodiscard]] c10::Device device() const { return device_; }
  /// That buffers are counted in.
  [[nodiscard]] const std::shared_ptr<MemoryLedger>& ledger() const { return ledger_; }
  /// What its buffers are taken from. For the back ends that are built in.
  [[nodiscard]] const std::shared_ptr<detail::CommunicatorMemory>& memory() const {
    return memory_;
  }
  /// Exchanges under way, the oldest first.
  [[nodiscard]] const std::deque<std::unique_ptr<Exchange>>& exchanges() const {
    return exchanges_;
  }
  /// Bytes of the largest piece of a block's gradients; 0 where there are only roots.
  [[nodiscard]] int64_t block_piece_bytes() const { return block_piece_bytes_; }
  /// "all-gather of unit 'block3'"
  [[nodiscard]] std::string described(Collective::Operation operation, Segment segment) const;
  /// Throws Error(RanksDisagree) unless the ranks, by place in the group, do what this one does.
  void check_identities(const Exchange& exchange, std::span<const Identity> by_rank) const;
  /// shard (+)= the ranks' gradients from `first` on: `sources`, by rank, are `numel` elements each
  /// in the dtype that travels. A shard's parts are added in order.
  void add_piece(const Exchange& exchange, const std::vector<const void*>& sources, int64_t first,
                 int64_t numel) const;

 private:
  enum class Gathered : std::uint8_t { Not, Asked, Readable };
  struct SegmentState {
    Gathered gathered = Gathered::Not;
    void* gradients = nullptr;  ///< acquired
    bool from_pool = false;     ///< and to be given back
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
  std::string why_;  ///< of cancel()
};

}  // namespace sherd
