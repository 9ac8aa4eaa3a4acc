#include "sherd/world.h"

#include <utility>

#include <c10/util/Exception.h>

#include "rendezvous/backends.h"
#include "rendezvous/gpus.h"
#include "sherd/error.h"
#include "storage/own_work.h"

namespace sherd {

using Operation = Collective::Operation;

/// What all copies of a World are.
struct World::State {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<CollectiveObserver> observer = nullptr;
  std::vector<std::string> transports = {};  ///< of communicators of several ranks, each once
  std::string transport_of_one = {};         ///< of those of one rank

  /// Does what `call` does and tells the observer.
  template <class Call>
  auto observed(Operation operation, int64_t bytes, const Call& call) {
    const auto tell = [&](void (CollectiveObserver::*event)(const Collective&)) {
      if (observer != nullptr) {
        (observer.get()->*event)({operation, -1, {}, bytes});
      }
    };
    tell(&CollectiveObserver::started);
    tell(&CollectiveObserver::waiting);
    if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
      call();
      tell(&CollectiveObserver::ended);
    } else {
      auto result = call();
      tell(&CollectiveObserver::ended);
      return result;
    }
  }
};

World::World(std::shared_ptr<Backend> backend)
    : state_(std::make_shared<State>(State{std::move(backend)})) {}

World World::from_environment(const WorldOptions& options) {
  return World(detail::make_world_from_environment(options));
}

World World::alone(c10::DeviceType device) {
  return World(detail::make_local_world(detail::device_of_rank(device, 0)));
}

std::vector<World> World::in_process(int size, std::chrono::milliseconds timeout) {
  std::vector<World> worlds;
  for (auto& backend : detail::make_in_process_worlds(size, timeout)) {
    worlds.push_back(World(std::move(backend)));
  }
  return worlds;
}

World World::fake(const FakeRanks& ranks) {
  return World(detail::make_fake_world(ranks));
}

World World::over(std::shared_ptr<Backend> backend) {
  if (backend == nullptr) {
    throw Error(ExitCode::Usage, "[World::over] the back end is null.");
  }
  if (backend->rank() < 0 || backend->rank() >= backend->size()) {
    throw Error(ExitCode::Usage, "[World::over] the back end says that it is rank " +
                                     std::to_string(backend->rank()) + " of " +
                                     std::to_string(backend->size()) + ".");
  }
  return World(std::move(backend));
}

World World::subset(const RankGroup& group) {
  return World(state_->observed(Operation::Connect, 0,
                                [&] { return detail::make_subset_world(state_->backend, group); }));
}

int World::rank() const {
  return state_->backend->rank();
}

int World::size() const {
  return state_->backend->size();
}

int World::local_rank() const {
  return state_->backend->local_rank();
}

c10::Device World::device() const {
  return state_->backend->device();
}

c10::DeviceType World::device_type() const {
  return state_->backend->device_type();
}

int World::local_size() const {
  return state_->backend->local_size();
}

std::optional<Wait> World::waiting() const {
  return state_->backend->waiting();
}

void World::report_progress(const std::string& what) const {
  state_->backend->report_progress(what, std::chrono::milliseconds(0));
}

WorkPhase::WorkPhase(World world, std::string name, std::chrono::milliseconds limit)
    : world_(std::move(world)), name_(std::move(name)), limit_(limit) {
  world_.backend()->report_progress(name_, limit_);
}

WorkPhase::~WorkPhase() {
  world_.report_progress("after " + name_);
}

void WorkPhase::report(const std::string& how_far) const {
  world_.backend()->report_progress(name_ + ": " + how_far, limit_);
}

void World::all_reduce(std::span<double> values, ReduceOp op) {
  const auto range = detail::profiler_range("all-reduce");
  state_->observed(Operation::AllReduce, static_cast<int64_t>(values.size_bytes()),
                   [&] { state_->backend->control().all_reduce(values, op); });
}

std::vector<std::string> World::all_gather(const std::string& text) {
  return state_->observed(Operation::Texts, static_cast<int64_t>(text.size()),
                          [&] { return state_->backend->all_gather(text); });
}

void World::broadcast(void* data, int64_t bytes, int root) {
  if (root < 0 || root >= size() || bytes < 0) {
    throw Error(ExitCode::Usage, "[broadcast] the root is one of " + std::to_string(size()) +
                                     " ranks and sends 0 bytes or more; got root " +
                                     std::to_string(root) + " and " + std::to_string(bytes) +
                                     " bytes.");
  }
  if (bytes > 0 && size() > 1) {
    state_->observed(Operation::Broadcast, bytes,
                     [&] { state_->backend->broadcast(data, bytes, root); });
  }
}

void World::send(void* data, int64_t bytes, int from, int to) {
  if (from < 0 || from >= size() || to < 0 || to >= size() || bytes < 0) {
    throw Error(ExitCode::Usage, "[send] sender and receiver are among " + std::to_string(size()) +
                                     " ranks and exchange 0 bytes or more; got ranks " +
                                     std::to_string(from) + " and " + std::to_string(to) + " and " +
                                     std::to_string(bytes) + " bytes.");
  }
  if (bytes > 0 && from != to) {
    const bool takes_part = rank() == from || rank() == to;
    state_->observed(Operation::Send, takes_part ? bytes : 0,
                     [&] { state_->backend->send(data, bytes, from, to); });
  }
}

void World::barrier() {
  state_->observed(Operation::Barrier, 0, [&] { state_->backend->control().barrier(); });
}

std::unique_ptr<Communicator> World::make_communicator(const RankGroup& group) {
  auto communicator = state_->observed(Operation::Connect, 0,
                                       [&] { return state_->backend->make_communicator(group); });
  if (state_->observer != nullptr) {
    communicator->set_observer(state_->observer);
  }
  if (communicator->world_size() == 1) {
    state_->transport_of_one = communicator->transport();
  } else {
    std::erase(state_->transports, communicator->transport());
    state_->transports.push_back(communicator->transport());
  }
  return communicator;
}

std::string World::transport() const {
  std::string text;
  for (const std::string& transport : state_->transports) {
    text += (text.empty() ? "" : ", ") + transport;
  }
  return text.empty() ? state_->transport_of_one : text;
}

void World::set_observer(std::shared_ptr<CollectiveObserver> observer) {
  state_->observer = std::move(observer);
}

const std::shared_ptr<Backend>& World::backend() const {
  return state_->backend;
}

}  // namespace sherd
