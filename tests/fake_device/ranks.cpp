#include "tests/fake_device/ranks.h"

#include <map>
#include <mutex>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "src/comm/communicators.h"
#include "src/comm/connect_together.h"
#include "src/comm/local.h"
#include "tests/fake_device/fake_device.h"
#include "tests/fake_device/nccl.h"
#include "tests/support/ranks.h"

namespace sherd::fake {
namespace {

using Groups = std::vector<c10::intrusive_ptr<c10d::Backend>>;

// The process groups of all ranks: the first that asks makes them.
class Connections {
 public:
  Groups of(const std::string& name, const RankGroup& group) {
    const std::lock_guard lock(mutex_);
    Groups& found = groups_[name];
    if (found.empty()) {
      std::vector<c10::Device> devices;
      for (int member = 0; member < group.size; ++member) {
        devices.emplace_back(kDevice, static_cast<c10::DeviceIndex>(group.rank_at(member)));
      }
      found = make_fake_nccl(devices);
    }
    return found;
  }
  // No rank waits any more for one that has failed.
  void end() {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, ranks] : groups_) {
      ranks.front()->abort();
    }
  }
  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();

 private:
  std::mutex mutex_;
  std::map<std::string, Groups> groups_;
};

class RankOnDevice final : public Backend {
 public:
  RankOnDevice(std::shared_ptr<Backend> host, std::shared_ptr<Connections> connections,
               ReduceScatter way)
      : host_(std::move(host)),
        connections_(std::move(connections)),
        connecting_(connections_->store, {host_->rank(), host_->size(), "threads of one process"},
                    std::chrono::seconds(60)),
        way_(way) {}
  [[nodiscard]] int rank() const override { return host_->rank(); }
  [[nodiscard]] int size() const override { return host_->size(); }
  [[nodiscard]] c10::Device device() const override {
    return {kDevice, static_cast<c10::DeviceIndex>(rank())};
  }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group) override {
    const std::string name = std::to_string(made_++) + "/" + std::to_string(group.first);
    if (group.size == 1) {
      connecting_.on_all_ranks(nullptr);
      return std::make_unique<detail::LocalCommunicator>();
    }
    const auto own = static_cast<std::size_t>(group.index_of(rank()));
    const detail::ProcessGroups groups{
        connections_->of(name + "/gather", group)[own],
        connections_->of(name + "/reduce", group)[own],
        detail::FailureNotes{connections_->store, group, rank(), std::chrono::seconds(1), board_},
        [device = device()] { return last_nccl_error(device.index()); }};
    connecting_.on_all_ranks(
        [groups, device = device()] { detail::connect_groups(groups, device); });
    return detail::make_device_communicator(groups, device(), way_);
  }
  [[nodiscard]] Communicator& control() override { return host_->control(); }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    return host_->all_gather(text);
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    host_->broadcast(data, bytes, root);
  }
  void end_groups() { connections_->end(); }

 private:
  std::shared_ptr<Backend> host_;
  std::shared_ptr<Connections> connections_;
  detail::Connecting connecting_;
  ReduceScatter way_;
  std::shared_ptr<detail::CurrentWait> board_ = std::make_shared<detail::CurrentWait>();
  int made_ = 0;
};

}  // namespace

StreamsEndFirst::~StreamsEndFirst() {
  if (auto* const rank = dynamic_cast<RankOnDevice*>(world_.backend().get())) {
    if (std::uncaught_exceptions() > exceptions_) {
      rank->end_groups();
    }
    finish(rank->device().index());
  }
}

void run_ranks_on_devices(int ranks, const std::function<void(World)>& body, ReduceScatter way) {
  register_device();
  auto connections = std::make_shared<Connections>();
  test::run_ranks(ranks, [&](World world) {
    set_device(static_cast<c10::DeviceIndex>(world.rank()));
    try {
      body(World::over(std::make_shared<RankOnDevice>(world.backend(), connections, way)));
    } catch (...) {
      connections->end();
      throw;
    }
  });
}

}  // namespace sherd::fake
