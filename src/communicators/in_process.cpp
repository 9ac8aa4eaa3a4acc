#include "communicators/in_process.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sherd/error.h"

namespace sherd::detail {

InProcessHub::InProcessHub(const RankGroup& group, std::chrono::milliseconds timeout)
    : ranks_(static_cast<size_t>(group.size)), group_(group), timeout_(timeout) {}

void InProcessHub::update(const std::function<void(std::vector<RankView>&)>& change) {
  {
    const std::lock_guard lock(mutex_);
    change(ranks_);
  }
  changed_.notify_all();
}

void InProcessHub::wait_for_all(const std::string& what,
                                const std::function<bool(const RankView&)>& reached) {
  std::unique_lock lock(mutex_);
  const auto done = [&] { return std::all_of(ranks_.begin(), ranks_.end(), reached); };
  const auto hopeless = [&] {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [&](const RankView& rank) { return rank.departed && !reached(rank); });
  };
  const bool in_time = changed_.wait_for(lock, timeout_, [&] { return done() || hopeless(); });
  if (done()) {
    return;
  }
  std::string missing;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!reached(ranks_[rank])) {
      missing += (missing.empty() ? "" : ", ") +
                 std::to_string(group_.rank_at(static_cast<int>(rank))) +
                 (ranks_[rank].departed ? " (has left)" : "");
    }
  }
  throw Error(in_time ? ExitCode::PeerLost : ExitCode::Hang,
              what + (in_time ? "" : " timed out") + ": missing rank " + missing +
                  ". Every rank must reach this collective; look at what they did instead.");
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

void InProcessCommunicator::attach(std::vector<SegmentSpec> segments, c10::Device device,
                                   std::shared_ptr<MemoryLedger> ledger) {
  segments_ = std::move(segments);
  memory_ = std::make_shared<Memory>();
  for (const SegmentSpec& spec : segments_) {
    memory_->shards.emplace_back(segment_bytes(spec, 1), spec.shard_kind, ledger, device);
  }
  slots_.assign(segments_.size(), nullptr);
  acquired_.assign(segments_.size(), nullptr);
  memory_->reduce = std::make_unique<ReduceBuffers>(
      segments_, world_size(), MemoryKind::ReduceBuffer, std::move(ledger), device);
  hub_->update([&](auto& ranks) {
    auto& mine = ranks[static_cast<size_t>(rank_)];
    mine.memory = memory_;
    mine.segments.resize(segments_.size());
    for (size_t i = 0; i < segments_.size(); ++i) {
      mine.segments[i].travelling = memory_->shards[i].data();
    }
  });
  barrier();
}

void* InProcessCommunicator::travelling_shard(Segment segment) {
  return memory_->shards[static_cast<size_t>(segment)].data();
}

void InProcessCommunicator::change(Segment segment,
                                   const std::function<void(InProcessHub::SegmentView&)>& change) {
  hub_->update([&](auto& ranks) {
    change(ranks[static_cast<size_t>(rank_)].segments[static_cast<size_t>(segment)]);
  });
}

void InProcessCommunicator::wait_segment(const char* what, Segment segment,
                                         int64_t InProcessHub::SegmentView::*counter,
                                         int64_t value) {
  const auto index = static_cast<size_t>(segment);
  const std::string named = what + (" of unit '" + segments_[index].name + "'");
  hub_->wait_for_all(named, [&](const InProcessHub::RankView& rank) {
    return rank.segments[index].*counter >= value;
  });
}

std::vector<const void*> InProcessCommunicator::pieces(Segment segment,
                                                       const void* InProcessHub::SegmentView::*base,
                                                       int64_t offset_bytes) {
  const std::lock_guard lock(hub_->mutex());
  std::vector<const void*> found;
  for (const auto& rank : hub_->ranks()) {
    found.push_back(static_cast<const char*>(rank.segments[static_cast<size_t>(segment)].*base) +
                    offset_bytes);
  }
  return found;
}

void InProcessCommunicator::begin_update(Segment segment) {
  int64_t mine = 0;
  change(segment, [&](auto& view) { mine = view.gathered; });
  wait_segment("optimizer step", segment, &InProcessHub::SegmentView::gathered, mine);
}

void InProcessCommunicator::publish(Segment segment) {
  change(segment, [](auto& view) { ++view.published; });
}

void* InProcessCommunicator::gather(Segment segment, void* slot) {
  ++counts_.gathers;
  slots_[static_cast<size_t>(segment)] = slot;
  return slot;
}

void InProcessCommunicator::wait_gather(Segment segment) {
  const auto index = static_cast<size_t>(segment);
  int64_t version = 0;
  change(segment, [&](auto& view) { version = view.published; });
  wait_segment("all-gather", segment, &InProcessHub::SegmentView::published, version);
  const int64_t bytes = segment_bytes(segments_[index], 1);
  auto* out = static_cast<char*>(slots_[index]);
  for (const void* piece : pieces(segment, &InProcessHub::SegmentView::travelling, 0)) {
    std::memcpy(out, piece, static_cast<size_t>(bytes));
    out += bytes;
  }
  counts_.bytes_sent += bytes * (world_size() - 1);
  change(segment, [](auto& view) { ++view.gathered; });
}

void* InProcessCommunicator::acquire_reduce_buffer(Segment segment, const Reduction& /*target*/) {
  while (pending_.size() >= kReductionsInFlight) {
    release_oldest();
  }
  return acquired_[static_cast<size_t>(segment)] = memory_->reduce->acquire(segment);
}

void InProcessCommunicator::release_reduce_buffer(Segment segment) {
  memory_->reduce->release(std::exchange(acquired_[static_cast<size_t>(segment)], nullptr));
}

void InProcessCommunicator::reduce(Segment segment, const Reduction& target) {
  ++counts_.reductions;
  const auto index = static_cast<size_t>(segment);
  const bool owned = target.source == nullptr;
  void* buffer = owned ? std::exchange(acquired_[index], nullptr) : nullptr;
  int64_t number = 0;
  // A buffer of the same segment that is still being read keeps its place in the view until it has
  // been summed.
  while (std::any_of(pending_.begin(), pending_.end(),
                     [&](const Pending& p) { return p.segment == segment; })) {
    release_oldest();
  }
  change(segment, [&](auto& view) {
    view.reduce_buffer = owned ? buffer : target.source;
    number = ++view.posted;
  });
  counts_.bytes_sent += reduced_bytes(segments_[index], target) * (world_size() - 1);
  pending_.push_back({segment, target, buffer, number, false});
}

void InProcessCommunicator::sum_oldest() {
  Pending& oldest = pending_.front();
  if (oldest.summed) {
    return;
  }
  const SegmentSpec& spec = segments_[static_cast<size_t>(oldest.segment)];
  wait_segment("reduction", oldest.segment, &InProcessHub::SegmentView::posted, oldest.number);
  const int64_t offset = reduced_bytes(spec, oldest.target) * rank_;
  sum_piece(oldest.target, reduced_dtype(spec, oldest.target),
            pieces(oldest.segment, &InProcessHub::SegmentView::reduce_buffer, offset), 0,
            spec.shard_numel, memory_->reduce->device());
  oldest.summed = true;
  change(oldest.segment, [](auto& view) { ++view.summed; });
}

void InProcessCommunicator::release_oldest() {
  sum_oldest();
  const Pending& oldest = pending_.front();
  wait_segment("reduction", oldest.segment, &InProcessHub::SegmentView::summed, oldest.number);
  if (oldest.buffer != nullptr) {
    memory_->reduce->release(oldest.buffer);
  }
  pending_.pop_front();
}

void InProcessCommunicator::finish_reductions() {
  while (!pending_.empty()) {
    release_oldest();
  }
}

void InProcessCommunicator::abandon() {
  finish_reductions();
  acquired_.assign(segments_.size(), nullptr);
  memory_->reduce->release_all();
}

void InProcessCommunicator::all_reduce(std::span<double> values, ReduceOp op) {
  ++counts_.all_reduces;
  int64_t round = 0;
  hub_->update([&](auto& ranks) {
    auto& mine = ranks[static_cast<size_t>(rank_)];
    mine.values.assign(values.begin(), values.end());
    round = ++mine.rounds;
  });
  hub_->wait_for_all("all-reduce", [&](const auto& rank) { return rank.rounds >= round; });
  {
    const std::lock_guard lock(hub_->mutex());
    for (size_t i = 0; i < values.size(); ++i) {
      double result = hub_->ranks()[0].values.at(i);
      for (size_t rank = 1; rank < hub_->ranks().size(); ++rank) {
        result = join(result, hub_->ranks()[rank].values.at(i), op);
      }
      values[i] = result;
    }
  }
  hub_->update([&](auto& ranks) { ++ranks[static_cast<size_t>(rank_)].rounds_left; });
  hub_->wait_for_all("all-reduce", [&](const auto& rank) { return rank.rounds_left >= round; });
}

void InProcessCommunicator::barrier() {
  all_reduce({}, ReduceOp::Sum);
}

}  // namespace sherd::detail
