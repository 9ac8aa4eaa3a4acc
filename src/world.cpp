#include "sherd/world.h"

#include <utility>

#include "communicators/local.h"
#include "profiler_range.h"
#include "sherd/error.h"
#include "world_impl.h"

namespace sherd {

namespace detail {

namespace {

class LocalWorld final : public WorldImpl {
 public:
  explicit LocalWorld(c10::Device device) : device_(device) {}
  [[nodiscard]] c10::Device device() const override { return device_; }
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(
      const RankGroup& /*group*/) override {
    return std::make_unique<LocalCommunicator>();
  }
  [[nodiscard]] Communicator& control() override { return control_; }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    return {text};
  }
  void broadcast(void* /*data*/, int64_t /*bytes*/, int /*root*/) override {}

 private:
  c10::Device device_;
  LocalCommunicator control_;
};

}  // namespace

std::shared_ptr<WorldImpl> make_local_world(c10::Device device) {
  return std::make_shared<LocalWorld>(device);
}

}  // namespace detail

World World::from_environment(const WorldOptions& options) {
  return World(detail::make_world_from_environment(options));
}

World World::alone(c10::DeviceType device) {
  return World(detail::make_local_world(detail::device_of_rank(device, 0)));
}

std::vector<World> World::in_process(int size, std::chrono::milliseconds timeout) {
  std::vector<World> worlds;
  for (auto& impl : detail::make_in_process_worlds(size, timeout)) {
    worlds.push_back(World(std::move(impl)));
  }
  return worlds;
}

int World::rank() const {
  return impl_->rank();
}

int World::size() const {
  return impl_->size();
}

int World::local_rank() const {
  return impl_->local_rank();
}

c10::Device World::device() const {
  return impl_->device();
}

int World::local_size() const {
  return impl_->local_size();
}

std::optional<Wait> World::waiting() const {
  return impl_->waiting();
}

void World::all_reduce(std::span<double> values, ReduceOp op) {
  const detail::ProfilerRange range("all-reduce");
  impl_->control().all_reduce(values, op);
}

std::vector<std::string> World::all_gather(const std::string& text) {
  return impl_->all_gather(text);
}

void World::broadcast(void* data, int64_t bytes, int root) {
  if (root < 0 || root >= size() || bytes < 0) {
    throw Error(ExitCode::Usage, "[broadcast] the root is one of " + std::to_string(size()) +
                                     " ranks and sends 0 bytes or more; got root " +
                                     std::to_string(root) + " and " + std::to_string(bytes) +
                                     " bytes.");
  }
  if (bytes > 0 && size() > 1) {
    impl_->broadcast(data, bytes, root);
  }
}

void World::barrier() {
  impl_->control().barrier();
}

std::unique_ptr<Communicator> World::make_communicator(const RankGroup& group) {
  return impl_->make_communicator(group);
}

}  // namespace sherd
