// Ranks that are threads of one process: for tests and examples, with the same order of operations
// as processes.

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/buffers.h"
#include "comm/communicators.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

// How often a wait looks at the progress of others.
constexpr std::chrono::milliseconds kBetweenHubLooks{50};

}  // namespace

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

  void update(const std::function<void(std::vector<RankView>&)>& change) {
    {
      const std::lock_guard lock(mutex_);
      change(ranks_);
    }
    changed_.notify_all();
  }
  /// Blocks `member` until `reached` holds for every rank. Throws Error, naming the other ranks:
  /// PeerLost when one has left, Hang when the wait is over (Patience).
  void wait_for_all(int member, const std::string& what,
                    const std::function<bool(const RankView&)>& reached) {
    std::unique_lock lock(mutex_);
    const RankView& mine = ranks_[static_cast<size_t>(member)];
    const auto done = [&] { return std::all_of(ranks_.begin(), ranks_.end(), reached); };
    const auto hopeless = [&] {
      return mine.departed || std::any_of(ranks_.begin(), ranks_.end(), [&](const RankView& rank) {
               return rank.departed && !reached(rank);
             });
    };
    Patience patience(board_.get(), timeout_);
    bool in_time = true;
    while (in_time && !changed_.wait_for(lock, std::min(kBetweenHubLooks, timeout_),
                                         [&] { return done() || hopeless(); })) {
      in_time = !patience.is_over();
    }
    if (done()) {
      return;
    }
    if (mine.departed) {
      throw Error(ExitCode::PeerLost, what + " was cancelled: " + mine.cancelled);
    }
    std::string missing;
    std::vector<int> silent;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!reached(ranks_[rank])) {
        silent.push_back(group_.rank_at(static_cast<int>(rank)));
        missing += (missing.empty() ? "" : ", ") +
                   std::to_string(group_.rank_at(static_cast<int>(rank))) +
                   (ranks_[rank].departed ? " (has left)" : "");
      }
    }
    throw Error(in_time ? ExitCode::PeerLost : ExitCode::Hang,
                what + (in_time ? "" : " timed out") + ": missing rank " + missing + "." +
                    last_work_of(patience.reports(), silent) +
                    " Every rank must reach this collective; look at what they did instead.");
  }
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

namespace {

/// One rank's end of a hub. Gathers copy all ranks' shards; reductions read the others' buffers.
class InProcessCommunicator final : public BufferedCommunicator {
 public:
  InProcessCommunicator(std::shared_ptr<InProcessHub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank) {}
  ~InProcessCommunicator() override {
    hub_->update([&](auto& ranks) {
      ranks[static_cast<size_t>(rank_)].departed = true;
      if (std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.departed; })) {
        for (auto& rank : ranks) {
          rank.memory.reset();
        }
      }
    });
  }

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
  void share_memory() override {
    slots_.assign(segments().size(), nullptr);
    hub_->update([&](auto& ranks) {
      auto& mine = ranks[static_cast<size_t>(rank_)];
      mine.memory = memory();
      mine.segments.resize(segments().size());
      for (size_t i = 0; i < segments().size(); ++i) {
        mine.segments[i].travelling = memory()->travelling[i];
      }
    });
    barrier();
  }
  void* start_gather(Segment segment, void* slot, const GatherEvents& /*after*/) override {
    if (spec(segment).piece != nullptr) {
      change(segment, [](auto& view) { ++view.readable; });
    }
    return slots_[static_cast<size_t>(segment)] = slot;
  }
  void finish_gather(Segment segment) override {
    constexpr auto kGather = Collective::Operation::Gather;
    const auto index = static_cast<size_t>(segment);
    const bool engine_owns_shards = spec(segment).piece != nullptr;
    wait_segment(kGather, segment, &SegmentView::published);
    if (engine_owns_shards) {
      wait_segment(kGather, segment, &SegmentView::readable);
    }
    const auto bytes = static_cast<size_t>(segment_bytes(spec(segment), 1));
    auto* out = static_cast<char*>(slots_[index]);
    for (const auto& rank : hub_->ranks()) {
      std::memcpy(out, rank.segments[index].travelling, bytes);
      out += bytes;
    }
    change(segment, [](auto& view) { ++view.gathered; });
    if (engine_owns_shards) {  // the engine may write its shard as soon as the others have read it
      wait_segment(kGather, segment, &SegmentView::gathered);
    }
  }
  void await_readers(Segment segment) override {
    wait_segment(Collective::Operation::Update, segment, &SegmentView::gathered);
  }
  void show_published(Segment segment) override {
    change(segment, [](auto& view) { ++view.published; });
  }
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override {
    return std::make_unique<Posted>();
  }
  void start_exchange(Exchange& exchange) override {
    auto& mine = static_cast<Posted&>(exchange);
    change(mine.segment, [&](auto& view) {
      mine.number = ++view.posted;
      view.posted_gradients[static_cast<size_t>(mine.number % 2)] = {mine.gradients, mine.identity};
    });
  }
  void finish_exchange(Exchange& exchange) override {
    const auto& mine = static_cast<const Posted&>(exchange);
    constexpr auto kReduction = Collective::Operation::Reduction;
    wait_segment(kReduction, mine.segment, &SegmentView::posted, mine.number);
    const int64_t numel = spec(mine.segment).shard_numel;
    const int64_t offset = numel * static_cast<int64_t>(c10::elementSize(mine.dtype)) * rank_;
    std::vector<Identity> identities;
    std::vector<const void*> shards;
    for (const auto& rank : hub_->ranks()) {  // a rank rewrites them when all have summed
      const auto& posted = rank.segments[static_cast<size_t>(mine.segment)]
                               .posted_gradients[static_cast<size_t>(mine.number % 2)];
      identities.push_back(posted.identity);
      shards.push_back(static_cast<const char*>(posted.gradients) + offset);
    }
    check_identities(mine, identities);
    add_piece(mine, shards, 0, numel);
    change(mine.segment, [](auto& view) { ++view.summed; });
    wait_segment(kReduction, mine.segment, &SegmentView::summed, mine.number);
  }
  void gather_numbers(std::span<const double> mine, std::span<double> all) override {
    int64_t round = 0;
    hub_->update([&](auto& ranks) {
      auto& view = ranks[static_cast<size_t>(rank_)];
      view.values.assign(mine.begin(), mine.end());
      round = ++view.rounds;
    });
    hub_->wait_for_all(rank_, "all-reduce", [&](const auto& rank) { return rank.rounds >= round; });
    hub_->update([&](auto& ranks) {
      auto* out = all.data();
      for (const auto& rank : ranks) {  // ranks out of step may have another number of values
        std::copy_n(rank.values.begin(), std::min(rank.values.size(), mine.size()), out);
        out += mine.size();
      }
      ++ranks[static_cast<size_t>(rank_)].rounds_left;
    });
    hub_->wait_for_all(rank_, "all-reduce",
                       [&](const auto& rank) { return rank.rounds_left >= round; });
  }
  void interrupt(const std::string& why) override {
    hub_->update([&](auto& ranks) {
      auto& mine = ranks[static_cast<size_t>(rank_)];
      mine.departed = true;
      mine.cancelled = why;
    });
  }
  [[nodiscard]] int rank_of_world(int member) const override {
    return hub_->group().rank_at(member);
  }

  /// Waits until the counter has reached `value` on all ranks; by default this rank's own.
  void wait_segment(Collective::Operation operation, Segment segment, int64_t SegmentView::*counter,
                    std::optional<int64_t> value = std::nullopt) {
    const auto index = static_cast<size_t>(segment);
    // This rank alone writes its own counters, so it reads them without the lock.
    const int64_t awaited =
        value.value_or(hub_->ranks()[static_cast<size_t>(rank_)].segments[index].*counter);
    hub_->wait_for_all(rank_, described(operation, segment),
                       [&](const InProcessHub::RankView& rank) {
                         return rank.segments[index].*counter >= awaited;
                       });
  }
  void change(Segment segment, const std::function<void(SegmentView&)>& change) {
    hub_->update([&](auto& ranks) {
      change(ranks[static_cast<size_t>(rank_)].segments[static_cast<size_t>(segment)]);
    });
  }

  std::shared_ptr<InProcessHub> hub_;
  int rank_;
  std::vector<void*> slots_;
};

}  // namespace

std::shared_ptr<InProcessHub> make_in_process_hub(const RankGroup& group,
                                                  std::chrono::milliseconds timeout,
                                                  std::shared_ptr<ProgressBoard> board) {
  return std::make_shared<InProcessHub>(group, timeout, std::move(board));
}

std::unique_ptr<Communicator> make_in_process_communicator(std::shared_ptr<InProcessHub> hub,
                                                           int rank) {
  return std::make_unique<InProcessCommunicator>(std::move(hub), rank);
}

}  // namespace sherd::detail
