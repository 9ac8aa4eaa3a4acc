#pragma once
// A world of one: gathering, publishing and reducing move nothing.

#include "sherd/communicator.h"

namespace sherd::detail {

/// The travelling shard is the whole segment and is where it is gathered. fp32 gradients are born
/// in the gradient shard itself where nothing is to be added to; else they pass through one buffer.
class LocalCommunicator final : public BufferedCommunicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 1; }
  [[nodiscard]] std::string transport() const override { return "nothing (one rank)"; }
  [[nodiscard]] bool gathers_in_place() const override { return true; }

 private:
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override;
  void finish_gather(Segment /*segment*/) override {}
  void start_exchange(Exchange& exchange) override;
  void finish_exchange(Exchange& /*exchange*/) override {}
  [[nodiscard]] void* place_of_sum(Segment segment, const Reduction& target) override;
  [[nodiscard]] bool takes_pieces() const override { return true; }
  [[nodiscard]] bool takes_pieces_in_slots() const override { return true; }
  void gather_numbers(std::span<const double> mine, std::span<double> all) override;
};

}  // namespace sherd::detail
