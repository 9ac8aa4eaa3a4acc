#pragma once
// What a World is made of: one implementation for each way ranks reach each other.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/world.h"

namespace sherd::detail {

class WorldImpl {
 public:
  WorldImpl() = default;
  WorldImpl(const WorldImpl&) = delete;
  WorldImpl& operator=(const WorldImpl&) = delete;
  virtual ~WorldImpl() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual int local_rank() const { return rank(); }
  [[nodiscard]] virtual c10::Device device() const { return c10::Device(c10::kCPU); }
  [[nodiscard]] virtual int local_size() const { return size(); }
  /// What this rank waits for; any thread may ask.
  [[nodiscard]] virtual std::optional<Wait> waiting() const { return std::nullopt; }
  /// Collective over the whole world, also where groups differ: rank r passes the group it is in.
  [[nodiscard]] virtual std::unique_ptr<Communicator> make_communicator(const RankGroup& group) = 0;
  /// For collectives outside any model: numbers and short texts.
  [[nodiscard]] virtual Communicator& control() = 0;
  [[nodiscard]] virtual std::vector<std::string> all_gather(const std::string& text) = 0;
  /// `root` is one of several ranks, and `bytes` > 0.
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
};

/// Worlds from their parts: how one is wrapped in another.
struct WorldAccess {
  [[nodiscard]] static World make(std::shared_ptr<WorldImpl> impl) {
    return World(std::move(impl));
  }
  [[nodiscard]] static const std::shared_ptr<WorldImpl>& impl(const World& world) {
    return world.impl_;
  }
};

/// The device of the rank's number on its host. Throws Error(Unavailable) where there is none.
[[nodiscard]] c10::Device device_of_rank(c10::DeviceType type, int local_rank);
[[nodiscard]] std::shared_ptr<WorldImpl> make_local_world(c10::Device device);
[[nodiscard]] std::shared_ptr<WorldImpl> make_world_from_environment(const WorldOptions& options);
[[nodiscard]] std::vector<std::shared_ptr<WorldImpl>> make_in_process_worlds(
    int size, std::chrono::milliseconds timeout);

}  // namespace sherd::detail
