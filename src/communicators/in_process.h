#pragma once
// Ranks that are threads of one process: for tests and examples, with the same order of operations
// as processes.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "communicators/reduce_buffers.h"
#include "sherd/world.h"

namespace sherd::detail {

/// What the ranks of one communicator see of each other. Counters only grow; a rank waits until all
/// have reached its own.
class InProcessHub {
 public:
  InProcessHub(const RankGroup& group, std::chrono::milliseconds timeout);

  struct SegmentView {
    const void* travelling = nullptr;
    const void* reduce_buffer = nullptr;
    int64_t published = 0;
    int64_t gathered = 0;
    int64_t posted = 0;
    int64_t summed = 0;
  };
  struct RankView {
    std::vector<SegmentView> segments;
    std::vector<double> values;  ///< of the all-reduce under way
    int64_t rounds = 0;          ///< all-reduces and barriers entered
    int64_t rounds_left = 0;
    bool departed = false;
    std::shared_ptr<void> memory;  ///< what the segments point at: there until all have departed
  };

  void update(const std::function<void(std::vector<RankView>&)>& change);
  /// Waits until `reached(rank view)` holds for every rank; throws Error naming those for which it
  /// does not: PeerLost when one has left, Hang when the timeout has passed.
  void wait_for_all(const std::string& what, const std::function<bool(const RankView&)>& reached);
  [[nodiscard]] const std::vector<RankView>& ranks() const { return ranks_; }
  [[nodiscard]] std::mutex& mutex() { return mutex_; }
  [[nodiscard]] int world_size() const { return static_cast<int>(ranks_.size()); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RankView> ranks_;
  RankGroup group_;
  std::chrono::milliseconds timeout_;
};

/// One rank's end of a hub. A gather copies the pieces of all ranks; a reduction reads the other
/// ranks' buffers.
class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<InProcessHub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank) {}
  ~InProcessCommunicator() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return hub_->world_size(); }
  void attach(std::vector<SegmentSpec> segments, c10::Device device,
              std::shared_ptr<MemoryLedger> ledger) override;
  [[nodiscard]] void* travelling_shard(Segment segment) override;
  void begin_update(Segment segment) override;
  void publish(Segment segment) override;
  [[nodiscard]] bool gathers_in_place() const override { return false; }
  void* gather(Segment segment, void* slot) override;
  void wait_gather(Segment segment) override;
  void release(Segment /*segment*/) override {}
  [[nodiscard]] void* acquire_reduce_buffer(Segment segment, const Reduction& target) override;
  void release_reduce_buffer(Segment segment) override;
  void reduce(Segment segment, const Reduction& target) override;
  [[nodiscard]] int reductions_in_flight() const override {
    return static_cast<int>(pending_.size());
  }
  void finish_reductions() override;
  void abandon() override;
  void all_reduce(std::span<double> values, ReduceOp op) override;
  void barrier() override;

 private:
  struct Pending {
    Segment segment;
    Reduction target;
    void* buffer;    ///< null where the gradients are the engine's own
    int64_t number;  ///< how many of the segment have been posted with it
    bool summed;
  };
  struct Memory {
    std::vector<Buffer> shards;
    std::unique_ptr<ReduceBuffers> reduce;
  };
  void sum_oldest();
  void release_oldest();
  void wait_segment(const char* what, Segment segment, int64_t InProcessHub::SegmentView::*counter,
                    int64_t value);
  void change(Segment segment, const std::function<void(InProcessHub::SegmentView&)>& change);
  [[nodiscard]] std::vector<const void*> pieces(Segment segment,
                                                const void* InProcessHub::SegmentView::*base,
                                                int64_t offset_bytes);

  std::shared_ptr<InProcessHub> hub_;
  int rank_;
  std::vector<SegmentSpec> segments_;
  std::shared_ptr<Memory> memory_;
  std::vector<void*> slots_;
  std::vector<void*> acquired_;
  std::deque<Pending> pending_;
};

}  // namespace sherd::detail
