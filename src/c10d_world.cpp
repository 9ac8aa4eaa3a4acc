#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "communicators/c10d.h"
#include "communicators/local.h"
#include "launch/rank_environment.h"
#include "network.h"
#include "sherd/error.h"
#include "world_impl.h"

namespace sherd::detail {

namespace {

using launch::RankEnvironment;

c10::intrusive_ptr<c10d::Store> meet(const RankEnvironment& environment,
                                     std::chrono::milliseconds timeout) {
  const std::string& host = *environment.master_address;
  c10d::TCPStoreOptions options;
  options.port = *environment.master_port;
  options.timeout = timeout;
  options.numWorkers = static_cast<size_t>(environment.world_size);
  options.isServer = environment.rank == 0 && !environment.agent_store;
  options.waitWorkers = !environment.agent_store;
  if (options.isServer) {
    // Without a socket of ours the store would listen on every interface.
    options.masterListenFd =
        environment.master_fd ? *environment.master_fd : listen_on(host, options.port);
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& error) {
    const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
    throw Error(
        ExitCode::PeerLost,
        "rendezvous: rank " + std::to_string(environment.rank) + " of " +
            std::to_string(environment.world_size) + " did not meet the others at " + host + ":" +
            std::to_string(options.port) + " (" +
            (c10_error != nullptr ? c10_error->what_without_backtrace() : error.what()) +
            "). Check that all ranks were started, with the same MASTER_ADDR and MASTER_PORT.");
  }
}

class C10dWorld final : public WorldImpl {
 public:
  C10dWorld(const RankEnvironment& environment, std::chrono::milliseconds timeout)
      : environment_(environment), timeout_(timeout), store_(meet(environment, timeout)) {
    const std::string address =
        environment.all_local
            ? "127.0.0.1"
            : local_address_towards(*environment.master_address, *environment.master_port);
    device_ = c10d::ProcessGroupGloo::createDeviceForHostname(address);
    control_ = std::make_unique<C10dCommunicator>(groups());
  }

  [[nodiscard]] int rank() const override { return environment_.rank; }
  [[nodiscard]] int size() const override { return environment_.world_size; }
  [[nodiscard]] int local_rank() const override { return environment_.local_rank; }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator() override {
    return std::make_unique<C10dCommunicator>(groups());
  }
  [[nodiscard]] Communicator& control() override { return *control_; }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    return control_->all_gather_bytes(text);
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    control_->broadcast_bytes(data, bytes, root);
  }

 private:
  c10::intrusive_ptr<c10d::Backend> group(const std::string& name) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout_);
    options->devices.push_back(device_);
    auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
    try {
      return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank(), size(), options);
    } catch (const c10::Error& error) {
      throw Error(ExitCode::PeerLost, "connecting the ranks failed on rank " +
                                          std::to_string(rank()) + ": " +
                                          error.what_without_backtrace());
    } catch (const std::exception& error) {
      throw Error(ExitCode::PeerLost, "connecting the ranks failed on rank " +
                                          std::to_string(rank()) + ": " + error.what());
    }
  }

  ProcessGroups groups() {
    const std::string name = "sherd/" + std::to_string(communicators_++);
    ProcessGroups made;
    made.gather = group(name + "/gather");
    made.reduce = group(name + "/reduce");
    return made;
  }

  RankEnvironment environment_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::unique_ptr<C10dCommunicator> control_;
  int communicators_ = 0;
};

}  // namespace

std::shared_ptr<WorldImpl> make_world_from_environment(const WorldOptions& options) {
  const RankEnvironment environment = launch::detect(launch::process_environment);
  if (environment.world_size == 1) {
    return make_local_world();
  }
  return std::make_shared<C10dWorld>(environment, options.timeout);
}

}  // namespace sherd::detail
