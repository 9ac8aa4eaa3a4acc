#pragma once
// A world whose communicators are wrapped in others, to see what the engine does with them.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/world_impl.h"

namespace sherd::test {

class DecoratedWorld final : public detail::WorldImpl {
 public:
  using Decorate = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)>;
  DecoratedWorld(std::shared_ptr<detail::WorldImpl> inner, Decorate decorate)
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

 private:
  std::shared_ptr<detail::WorldImpl> inner_;
  Decorate decorate_;
};

inline World decorated_world(const World& world, DecoratedWorld::Decorate decorate) {
  return detail::WorldAccess::make(
      std::make_shared<DecoratedWorld>(detail::WorldAccess::impl(world), std::move(decorate)));
}

}  // namespace sherd::test
