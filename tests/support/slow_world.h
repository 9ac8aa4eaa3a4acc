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

/// Late at everything that other ranks can see: before and after gathers and reductions, before the
/// optimizer writes and before it publishes.
class SlowCommunicator final : public DecoratedCommunicator {
  // Late, and late to go on.
  template <class Call>
  auto late(const Call& call) {
    delays_->sleep();
    if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
      call();
      delays_->sleep();
    } else {
      auto result = call();
      delays_->sleep();
      return result;
    }
  }
  using Inner = DecoratedCommunicator;

 public:
  SlowCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Delays> delays)
      : Inner(std::move(inner)), delays_(std::move(delays)) {}

  void begin_update(Segment segment) override {
    late([&] { Inner::begin_update(segment); });
  }
  void publish(Segment segment) override {
    late([&] { Inner::publish(segment); });
  }
  void* gather(Segment segment, void* slot, const GatherEvents& after) override {
    return late([&] { return Inner::gather(segment, slot, after); });
  }
  void wait_gather(Segment segment) override {
    late([&] { Inner::wait_gather(segment); });
  }
  void release(Segment segment) override {
    late([&] { Inner::release(segment); });
  }
  [[nodiscard]] void* acquire_reduce_buffer(Segment segment, const Reduction& target) override {
    return late([&] { return Inner::acquire_reduce_buffer(segment, target); });
  }
  void reduce(Segment segment, const Reduction& target) override {
    late([&] { Inner::reduce(segment, target); });
  }
  void finish_reductions() override {
    late([&] { Inner::finish_reductions(); });
  }
  void all_reduce(std::span<double> values, ReduceOp op) override {
    late([&] { Inner::all_reduce(values, op); });
  }
  void barrier() override {
    late([&] { Inner::barrier(); });
  }

 private:
  std::shared_ptr<Delays> delays_;
};

inline World slow_world(const World& world, const std::shared_ptr<Delays>& delays) {
  return decorated_world(world, [delays](std::unique_ptr<Communicator> inner) {
    return std::make_unique<SlowCommunicator>(std::move(inner), delays);
  });
}

}  // namespace sherd::test
