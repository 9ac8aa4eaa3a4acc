#pragma once
// A world whose communicators are wrapped in others, to see or to change what the engine does with
// them.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sherd/world.h"

namespace sherd::test {

/// Another communicator. Derived classes change some of its methods.
class DecoratedCommunicator : public Communicator {
 public:
  explicit DecoratedCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int world_size() const override { return inner_->world_size(); }
  [[nodiscard]] std::string transport() const override { return inner_->transport(); }
  void attach(std::vector<SegmentSpec> segments, c10::Device device,
              std::shared_ptr<MemoryLedger> ledger) override {
    inner_->attach(std::move(segments), device, std::move(ledger));
  }
  [[nodiscard]] void* travelling_shard(Segment segment) override {
    return inner_->travelling_shard(segment);
  }
  void begin_update(Segment segment) override { inner_->begin_update(segment); }
  void publish(Segment segment) override { inner_->publish(segment); }
  [[nodiscard]] bool gathers_in_place() const override { return inner_->gathers_in_place(); }
  [[nodiscard]] bool gathers_on_own_stream() const override {
    return inner_->gathers_on_own_stream();
  }
  void* gather(Segment segment, void* slot, const GatherEvents& after) override {
    void* gathered = inner_->gather(segment, slot, after);
    counts_ = inner_->counts();
    return gathered;
  }
  void wait_gather(Segment segment) override { inner_->wait_gather(segment); }
  void release(Segment segment) override { inner_->release(segment); }
  [[nodiscard]] void* acquire_reduce_buffer(Segment segment, const Reduction& target) override {
    return inner_->acquire_reduce_buffer(segment, target);
  }
  void release_reduce_buffer(Segment segment) override { inner_->release_reduce_buffer(segment); }
  void reduce(Segment segment, const Reduction& target) override {
    inner_->reduce(segment, target);
    counts_ = inner_->counts();
  }
  [[nodiscard]] int reductions_in_flight() const override { return inner_->reductions_in_flight(); }
  void finish_reductions() override { inner_->finish_reductions(); }
  void abandon() override { inner_->abandon(); }
  void cancel(const std::string& why) override { inner_->cancel(why); }
  [[nodiscard]] int64_t most_received_bytes() const override {
    return inner_->most_received_bytes();
  }
  void all_reduce(std::span<double> values, ReduceOp op) override {
    inner_->all_reduce(values, op);
    counts_ = inner_->counts();
  }
  void barrier() override {
    inner_->barrier();
    counts_ = inner_->counts();
  }
  void set_observer(std::shared_ptr<CollectiveObserver> observer) override {
    inner_->set_observer(std::move(observer));
  }

 private:
  std::unique_ptr<Communicator> inner_;
};

class DecoratedBackend final : public Backend {
 public:
  using Decorate = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)>;
  DecoratedBackend(std::shared_ptr<Backend> inner, Decorate decorate)
      : inner_(std::move(inner)), decorate_(std::move(decorate)) {}
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] int local_rank() const override { return inner_->local_rank(); }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group) override {
    return decorate_(inner_->make_communicator(group));
  }
  [[nodiscard]] Communicator& control() override { return inner_->control(); }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    return inner_->all_gather(text);
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    inner_->broadcast(data, bytes, root);
  }
  void send(void* data, int64_t bytes, int from, int to) override {
    inner_->send(data, bytes, from, to);
  }
  void report_progress(const std::string& what, std::chrono::milliseconds limit) override {
    inner_->report_progress(what, limit);
  }

 private:
  std::shared_ptr<Backend> inner_;
  Decorate decorate_;
};

inline World decorated_world(const World& world, DecoratedBackend::Decorate decorate) {
  return World::over(std::make_shared<DecoratedBackend>(world.backend(), std::move(decorate)));
}

}  // namespace sherd::test
