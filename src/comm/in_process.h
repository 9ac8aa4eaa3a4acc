#pragma once
// Ranks that are threads of one process: for tests and examples, with the same order of operations
// as processes.

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/progress_board.h"
#include "sherd/backend.h"
#include "sherd/communicator.h"

namespace sherd::detail {

/// The state that the ranks of one communicator share. Counters only grow; a rank waits until all
/// have reached its own.
class InProcessHub {
 public:
  InProcessHub(const RankGroup& group, std::chrono::milliseconds timeout,
               std::shared_ptr<ProgressBoard> board)
      : ranks_(static_cast<size_t>(group.size)),
        group_(group),
        timeout_(timeout),
        board_(std::move(board)) {}

  /// One of the two reductions of a segment that may be in flight.
  struct PostedGradients {
    const void* gradients = nullptr;
    BufferedCommunicator::Identity identity = {};
  };
  struct SegmentView {
    const void* travelling = nullptr;
    std::array<PostedGradients, 2> posted_gradients = {};  ///< in turns
    int64_t published = 0;
    int64_t readable = 0;  ///< gathers for which the engine has provided its shard
    int64_t gathered = 0;
    int64_t posted = 0;
    int64_t summed = 0;
  };
  struct RankView {
    std::vector<SegmentView> segments;
    std::vector<double> values;  ///< of the current all-reduce
    int64_t rounds = 0;          ///< all-reduces and barriers entered
    int64_t rounds_left = 0;
    bool departed = false;
    std::string cancelled;         ///< the reason given to cancel()
    std::shared_ptr<void> memory;  ///< of the segments: kept until all have departed
  };

  void update(const std::function<void(std::vector<RankView>&)>& change);
  /// Blocks `member` until `reached` holds for every rank. Throws Error, naming the other ranks:
  /// PeerLost when one has left, Hang when the wait is over (Patience).
  void wait_for_all(int member, const std::string& what,
                    const std::function<bool(const RankView&)>& reached);
  [[nodiscard]] const std::vector<RankView>& ranks() const { return ranks_; }
  [[nodiscard]] int world_size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] const RankGroup& group() const { return group_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RankView> ranks_;
  RankGroup group_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<ProgressBoard> board_;
};

/// One rank's end of a hub. Gathers copy all ranks' shards; reductions read the others' buffers.
class InProcessCommunicator final : public BufferedCommunicator {
 public:
  InProcessCommunicator(std::shared_ptr<InProcessHub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank) {}
  ~InProcessCommunicator() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return hub_->world_size(); }
  [[nodiscard]] std::string transport() const override { return "threads of one process"; }
  [[nodiscard]] bool gathers_in_place() const override { return false; }
  [[nodiscard]] bool takes_pieces() const override { return true; }

 private:
  using SegmentView = InProcessHub::SegmentView;
  struct Posted : Exchange {
    int64_t number = 0;  ///< how many of the segment have been posted with it
  };
  void share_memory() override;
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override;
  void finish_gather(Segment segment) override;
  void await_readers(Segment segment) override {
    wait_segment(Collective::Operation::Update, segment, &SegmentView::gathered);
  }
  void show_published(Segment segment) override {
    change(segment, [](auto& view) { ++view.published; });
  }
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override {
    return std::make_unique<Posted>();
  }
  void start_exchange(Exchange& exchange) override;
  void finish_exchange(Exchange& exchange) override;
  void gather_numbers(std::span<const double> mine, std::span<double> all) override;
  void interrupt(const std::string& why) override;
  [[nodiscard]] int rank_of_world(int member) const override {
    return hub_->group().rank_at(member);
  }

  /// Waits until the counter has reached `value` on all ranks; by default this rank's own.
  void wait_segment(Collective::Operation operation, Segment segment, int64_t SegmentView::*counter,
                    std::optional<int64_t> value = std::nullopt);
  void change(Segment segment, const std::function<void(SegmentView&)>& change) {
    hub_->update([&](auto& ranks) {
      change(ranks[static_cast<size_t>(rank_)].segments[static_cast<size_t>(segment)]);
    });
  }

  std::shared_ptr<InProcessHub> hub_;
  int rank_;
  std::vector<void*> slots_;
};

}  // namespace sherd::detail
