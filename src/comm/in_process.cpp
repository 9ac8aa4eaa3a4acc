#include "comm/in_process.h"

#include <algorithm>
#include <cstring>

#include "comm/buffers.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

// How often a wait looks at the progress of others.
constexpr std::chrono::milliseconds kBetweenHubLooks{50};

}  // namespace

void InProcessHub::update(const std::function<void(std::vector<RankView>&)>& change) {
  {
    const std::lock_guard lock(mutex_);
    change(ranks_);
  }
  changed_.notify_all();
}

void InProcessHub::wait_for_all(int member, const std::string& what,
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

InProcessCommunicator::~InProcessCommunicator() {
  hub_->update([&](auto& ranks) {
    ranks[static_cast<size_t>(rank_)].departed = true;
    if (std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.departed; })) {
      for (auto& rank : ranks) {
        rank.memory.reset();
      }
    }
  });
}

void InProcessCommunicator::interrupt(const std::string& why) {
  hub_->update([&](auto& ranks) {
    auto& mine = ranks[static_cast<size_t>(rank_)];
    mine.departed = true;
    mine.cancelled = why;
  });
}

void InProcessCommunicator::share_memory() {
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

void InProcessCommunicator::wait_segment(Collective::Operation operation, Segment segment,
                                         int64_t SegmentView::*counter,
                                         std::optional<int64_t> value) {
  const auto index = static_cast<size_t>(segment);
  // This rank alone writes its own counters, so it reads them without the lock.
  const int64_t awaited =
      value.value_or(hub_->ranks()[static_cast<size_t>(rank_)].segments[index].*counter);
  hub_->wait_for_all(rank_, described(operation, segment), [&](const InProcessHub::RankView& rank) {
    return rank.segments[index].*counter >= awaited;
  });
}

void* InProcessCommunicator::start_gather(Segment segment, void* slot,
                                          const GatherEvents& /*after*/) {
  if (spec(segment).piece != nullptr) {
    change(segment, [](auto& view) { ++view.readable; });
  }
  return slots_[static_cast<size_t>(segment)] = slot;
}

void InProcessCommunicator::finish_gather(Segment segment) {
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

void InProcessCommunicator::start_exchange(Exchange& exchange) {
  auto& mine = static_cast<Posted&>(exchange);
  change(mine.segment, [&](auto& view) {
    mine.number = ++view.posted;
    view.posted_gradients[static_cast<size_t>(mine.number % 2)] = {mine.gradients, mine.identity};
  });
}

void InProcessCommunicator::finish_exchange(Exchange& exchange) {
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

void InProcessCommunicator::gather_numbers(std::span<const double> mine, std::span<double> all) {
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

}  // namespace sherd::detail
