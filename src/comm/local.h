#pragma once
// Ranks that exchange nothing: a world of one, and a fake rank of many.

#include <algorithm>
#include <map>
#include <string>

#include "comm/buffers.h"
#include "kernels/shard_math.h"
#include "sherd/communicator.h"
#include "sherd/world.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

/// A world of one. The shard in param_dtype is its own gathered segment. Operators write gradients
/// to the gradient shard itself if it has their dtype and nothing is accumulated.
class LocalCommunicator : public BufferedCommunicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 1; }
  [[nodiscard]] std::string transport() const override { return "nothing (one rank)"; }
  [[nodiscard]] bool gathers_in_place() const override { return true; }

 protected:
  void* start_gather(Segment segment, void* slot, const GatherEvents& /*after*/) override {
    return slot == nullptr ? travelling_shard(segment) : slot;
  }
  [[nodiscard]] void* place_of_sum(Segment segment, const Reduction& target) override {
    const bool in_place = spec(segment).dtype == target.dtype && !target.accumulate;
    return in_place ? target.shard : nullptr;
  }

 private:
  void finish_gather(Segment /*segment*/) override {}
  void start_exchange(Exchange& exchange) override {
    const int64_t numel = spec(exchange.segment).shard_numel;
    const Reduction& target = exchange.target;
    if (exchange.gradients != target.shard) {
      add_piece(exchange, {exchange.gradients}, 0, numel);
    } else if (target.scale != 1.0F) {
      shard_math::scale_in_place(flat_tensor(target.shard, numel, target.dtype, device()),
                                 target.scale);
    }
    exchange.has_ended = true;
  }
  void finish_exchange(Exchange& /*exchange*/) override {}
  [[nodiscard]] bool takes_pieces() const override { return true; }
  [[nodiscard]] bool takes_pieces_in_slots() const override { return true; }
  /// As if all ranks had the same numbers.
  void gather_numbers(std::span<const double> mine, std::span<double> all) override {
    for (size_t begin = 0; begin < all.size(); begin += mine.size()) {
      std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
    }
  }
};

/// One fake rank of many, for segments on the meta device. Allocates what another communicator
/// would, keeps its reductions in flight as long, notifies the observer alike, and moves nothing.
class FakeCommunicator final : public LocalCommunicator {
 public:
  enum class Like : std::uint8_t { Alone, SharedMemory, Hosts, ProcessGroups, Nccl };

  /// `hosts`: number of hosts of the group's ranks.
  FakeCommunicator(const RankGroup& group, int rank, Like like, int hosts = 1,
                   ReduceScatter way = ReduceScatter::RankOrder)
      : group_(group), rank_(group.index_of(rank)), like_(like), hosts_(hosts), way_(way) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return group_.size; }
  [[nodiscard]] std::string transport() const override { return "nothing (fake ranks)"; }
  [[nodiscard]] bool gathers_in_place() const override {
    return like_ == Like::Alone || like_ == Like::SharedMemory || like_ == Like::Hosts;
  }

 private:
  [[nodiscard]] int gathered_pieces() const override {
    return like_ == Like::Hosts ? hosts_ - 1 : LocalCommunicator::gathered_pieces();
  }
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override {
    if (like_ == Like::Hosts) {
      const int64_t bytes = segment_bytes(spec(segment), hosts_ - 1);
      received_.erase(segment);
      received_.emplace(segment, enter(bytes, MemoryKind::Gathered, ledger()));
    }
    return LocalCommunicator::start_gather(segment, slot, after);
  }
  void finish_reading(Segment segment) override { received_.erase(segment); }
  // LocalCommunicator's sums are complete at once.
  void start_exchange(Exchange& exchange) override { exchange.has_ended = like_ == Like::Alone; }
  [[nodiscard]] int64_t receive_bytes(const SegmentSpec& spec,
                                      c10::ScalarType dtype) const override {
    if (like_ == Like::Nccl) {
      return device_exchange(spec, dtype, segments(), world_size(), way_).receive_bytes;
    }
    return like_ == Like::Hosts || like_ == Like::ProcessGroups
               ? others_parts_bytes(spec, dtype, block_piece_bytes(), world_size())
               : 0;
  }
  [[nodiscard]] c10::ScalarType sent_dtype(const SegmentSpec& spec,
                                           c10::ScalarType dtype) const override {
    return like_ == Like::Nccl ? device_exchange(spec, dtype, segments(), world_size(), way_).sent
                               : dtype;
  }
  [[nodiscard]] void* place_of_sum(Segment segment, const Reduction& target) override {
    return like_ == Like::Alone ? LocalCommunicator::place_of_sum(segment, target) : nullptr;
  }
  [[nodiscard]] bool takes_pieces() const override {
    return like_ == Like::Alone || like_ == Like::ProcessGroups;
  }
  [[nodiscard]] bool takes_pieces_in_slots() const override {
    return like_ == Like::Alone || like_ == Like::Nccl;
  }
  [[nodiscard]] int rank_of_world(int member) const override { return group_.rank_at(member); }

  RankGroup group_;
  int rank_;
  Like like_;
  int hosts_;
  ReduceScatter way_;
  std::map<Segment, LedgerEntry> received_;  ///< from other hosts
};

}  // namespace sherd::detail
