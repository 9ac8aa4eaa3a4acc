#pragma once
// One rank of many that are not there: what it would hold, and in which order it would call.

#include <map>

#include "comm/shared_memory/shared_buffers.h"
#include "sherd/communicator.h"
#include "sherd/world.h"

namespace sherd::detail {

/// Allocates what another communicator would, keeps its reductions in flight as long, tells the
/// observer the same, and moves nothing. For segments on the meta device.
class FakeCommunicator final : public BufferedCommunicator {
 public:
  enum class Like : std::uint8_t { Alone, SharedMemory, Hosts, ProcessGroups, Nccl };

  /// `hosts`: how many the group's ranks are on.
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
    return like_ == Like::Hosts ? hosts_ - 1 : BufferedCommunicator::gathered_pieces();
  }
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override;
  void finish_gather(Segment /*segment*/) override {}
  void finish_reading(Segment segment) override { received_.erase(segment); }
  void start_exchange(Exchange& exchange) override;
  void finish_exchange(Exchange& /*exchange*/) override {}
  [[nodiscard]] int64_t receive_bytes(const SegmentSpec& spec,
                                      c10::ScalarType dtype) const override;
  [[nodiscard]] c10::ScalarType sent_dtype(const SegmentSpec& spec,
                                           c10::ScalarType dtype) const override;
  [[nodiscard]] void* place_of_sum(Segment segment, const Reduction& target) override;
  [[nodiscard]] bool takes_pieces() const override {
    return like_ == Like::Alone || like_ == Like::ProcessGroups;
  }
  [[nodiscard]] bool takes_pieces_in_slots() const override {
    return like_ == Like::Alone || like_ == Like::Nccl;
  }
  void gather_numbers(std::span<const double> mine, std::span<double> all) override;
  [[nodiscard]] int rank_of_world(int member) const override { return group_.rank_at(member); }

  RankGroup group_;
  int rank_;
  Like like_;
  int hosts_;
  ReduceScatter way_;
  std::map<Segment, LedgerEntry> received_;  ///< from other hosts
};

}  // namespace sherd::detail
