#pragma once
// A world whose collectives come late, by a time that each rank draws for itself: what the ranks
// compute may not depend on who comes first.

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/decorated_world.h"

namespace sherd::test {

/// Sleeps at random; with seed 0 never. Of one rank, on the threads that run it one after the
/// other.
class Delays {
 public:
  explicit Delays(uint64_t seed) : seed_(seed), random_(seed) {}
  /// Nothing, or up to 0.3 milliseconds.
  void sleep() {
    if (seed_ != 0 && random_() % 3 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
    }
  }

 private:
  uint64_t seed_;
  std::mt19937_64 random_;
};

/// Another communicator, late at everything that other ranks can see: before and after gathers and
/// reductions, before the optimizer writes and before it publishes.
class SlowCommunicator final : public Communicator {
  // Late, and late to go on.
  template <class Call>
  auto late(const Call& call) {
    delays_->sleep();
    if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
      call();
      counts_ = inner_->counts();
      delays_->sleep();
    } else {
      auto result = call();
      counts_ = inner_->counts();
      delays_->sleep();
      return result;
    }
  }

 public:
  SlowCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Delays> delays)
      : inner_(std::move(inner)), delays_(std::move(delays)) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int world_size() const override { return inner_->world_size(); }
  void attach(std::vector<SegmentSpec> segments, c10::Device device,
              std::shared_ptr<MemoryLedger> ledger) override {
    inner_->attach(std::move(segments), device, std::move(ledger));
  }
  [[nodiscard]] void* travelling_shard(Segment segment) override {
    return inner_->travelling_shard(segment);
  }
  void begin_update(Segment segment) override {
    late([&] { inner_->begin_update(segment); });
  }
  void publish(Segment segment) override {
    late([&] { inner_->publish(segment); });
  }
  [[nodiscard]] bool gathers_in_place() const override { return inner_->gathers_in_place(); }
  void* gather(Segment segment, void* slot) override {
    return late([&] { return inner_->gather(segment, slot); });
  }
  void wait_gather(Segment segment) override {
    late([&] { inner_->wait_gather(segment); });
  }
  void release(Segment segment) override {
    late([&] { inner_->release(segment); });
  }
  [[nodiscard]] void* acquire_reduce_buffer(Segment segment, const Reduction& target) override {
    return late([&] { return inner_->acquire_reduce_buffer(segment, target); });
  }
  void release_reduce_buffer(Segment segment) override { inner_->release_reduce_buffer(segment); }
  void reduce(Segment segment, const Reduction& target) override {
    late([&] { inner_->reduce(segment, target); });
  }
  [[nodiscard]] int reductions_in_flight() const override { return inner_->reductions_in_flight(); }
  void finish_reductions() override {
    late([&] { inner_->finish_reductions(); });
  }
  void abandon() override { inner_->abandon(); }
  void all_reduce(std::span<double> values, ReduceOp op) override {
    late([&] { inner_->all_reduce(values, op); });
  }
  void barrier() override {
    late([&] { inner_->barrier(); });
  }

 private:
  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<Delays> delays_;
};

inline World slow_world(const World& world, const std::shared_ptr<Delays>& delays) {
  return decorated_world(world, [delays](std::unique_ptr<Communicator> inner) {
    return std::make_unique<SlowCommunicator>(std::move(inner), delays);
  });
}

}  // namespace sherd::test
