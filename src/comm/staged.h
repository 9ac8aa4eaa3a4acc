#pragma once
// Ranks whose memory is on a device and whose exchange is on the host: several ranks on one GPU,
// for tests, and GPUs without a library that reaches from one to the other.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/communicator.h"

namespace sherd::detail {

/// Passes everything through a communicator of the host: shards are copied to it before a gather
/// and gathered segments from it, gradients to it and sums from it. Nothing overlaps.
class StagedCommunicator final : public BufferedCommunicator {
 public:
  /// `why`: why the devices do not exchange directly.
  explicit StagedCommunicator(std::unique_ptr<Communicator> host, std::string why = "")
      : host_(std::move(host)), why_(std::move(why)) {}

  [[nodiscard]] int rank() const override { return host_->rank(); }
  [[nodiscard]] int world_size() const override { return host_->world_size(); }
  [[nodiscard]] std::string transport() const override {
    return host_->transport() + " by way of the host" + (why_.empty() ? "" : ": " + why_);
  }
  [[nodiscard]] bool gathers_in_place() const override { return false; }

 private:
  struct OnHost : Exchange {
    at::Tensor sum;
    at::Tensor copied;  ///< gradients; undefined where they lie in the host's buffer
  };
  void share_memory() override;
  void* start_gather(Segment segment, void* slot, const GatherEvents& after) override;
  void finish_gather(Segment segment) override;
  void finish_reading(Segment segment) override { host_->release(segment); }
  void await_readers(Segment segment) override { host_->begin_update(segment); }
  void show_published(Segment segment) override;
  [[nodiscard]] std::unique_ptr<Exchange> make_exchange() override;
  void start_exchange(Exchange& exchange) override;
  void finish_exchange(Exchange& exchange) override;
  void gather_numbers(std::span<const double> mine, std::span<double> all) override;
  void forget_exchanges() override { host_->abandon(); }
  void interrupt(const std::string& why) override { host_->cancel(why); }

  std::unique_ptr<Communicator> host_;
  std::string why_;
  std::vector<Buffer> gathered_;    ///< on the host; empty where it gathers in place
  std::vector<void*> gathered_at_;  ///< on the host
  std::vector<void*> slots_;
};

}  // namespace sherd::detail
