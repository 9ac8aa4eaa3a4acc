#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/c10d.h"
#include "comm/communicators.h"
#include "comm/connect_together.h"
#include "comm/exchange.h"
#include "comm/local.h"
#include "comm/meeting.h"
#include "comm/progress_board.h"
#include "comm/shared_memory.h"
#include "launch/rank_environment.h"
#include "rendezvous/backends.h"
#include "rendezvous/gpus.h"
#include "rendezvous/network.h"
#include "rendezvous/rendezvous.h"
#include "sherd/error.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

using launch::RankEnvironment;

std::chrono::milliseconds timeout_of(const WorldOptions& options,
                                     const RankEnvironment& environment) {
  const std::chrono::milliseconds timeout = options.timeout.value_or(
      environment.timeout ? *environment.timeout : WorldOptions::kDefaultTimeout);
  if (timeout.count() <= 0 || timeout > launch::kLongestTimeout) {
    throw Error(ExitCode::Usage, "[World] ranks cannot wait " + std::to_string(timeout.count()) +
                                     " ms for each other: give a timeout of 1 ms to " +
                                     std::to_string(launch::kLongestTimeout.count()) + " s.");
  }
  return timeout;
}

std::string progress_key(int rank) {
  return "progress/" + std::to_string(rank);
}

std::string text_of_report(const WorkReport& report) {
  return std::to_string(report.number) + " " + std::to_string(report.limit.count()) + " " +
         report.what;
}

WorkReport report_from(const std::string& text) {
  const size_t number_end = text.find(' ');
  const size_t limit_end = text.find(' ', number_end + 1);
  return {std::stoll(text), std::chrono::milliseconds(std::stoll(text.substr(number_end))),
          text.substr(limit_end + 1)};
}

/// Reports of progress in the store of the rendezvous. put() does not wait for an answer. reports()
/// takes two exchanges per rank, with the limit of the store's connection (limit_connections_to()).
class StoreBoard final : public ProgressBoard {
 public:
  StoreBoard(c10::intrusive_ptr<c10d::Store> store, int world_size)
      : store_(std::move(store)), world_size_(world_size) {}
  void put(int rank, const WorkReport& report) override {
    try {
      if (!is_lost_) {
        store_->set(progress_key(rank), text_of_report(report));
      }
    } catch (const std::exception&) {
      is_lost_ = true;
    }
  }

  [[nodiscard]] std::vector<WorkReport> reports() override {
    std::vector<WorkReport> all(static_cast<size_t>(world_size_));
    try {
      for (int rank = 0; rank < world_size_ && !is_lost_; ++rank) {
        if (store_->check({progress_key(rank)})) {
          all[static_cast<size_t>(rank)] = report_from(store_->get_to_str(progress_key(rank)));
        }
      }
    } catch (const std::exception&) {
      is_lost_ = true;
    }
    return is_lost_ ? std::vector<WorkReport>() : all;
  }
  [[nodiscard]] bool is_lost() const override { return is_lost_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int world_size_;
  std::atomic<bool> is_lost_ = false;
};

/// Gloo's listening sockets. They accept connections only while groups are connected: strangers
/// could otherwise take all descriptors of the process.
class GlooListener {
 public:
  explicit GlooListener(const std::string& address) {
    const std::vector<int> before = listening_sockets();
    interface_ = c10d::ProcessGroupGloo::createDeviceForHostname(address);
    for (const int socket : listening_sockets()) {
      if (std::find(before.begin(), before.end(), socket) == before.end()) {
        sockets_.push_back(socket);
      }
    }
  }
  [[nodiscard]] const std::shared_ptr<::gloo::transport::Device>& interface() const {
    return interface_;
  }
  void set_accepting(bool accepts) const {
    for (const int socket : sockets_) {
      set_admitting(socket, accepts);
    }
  }

 private:
  std::shared_ptr<::gloo::transport::Device> interface_;
  std::vector<int> sockets_;  ///< Gloo's own
};

constexpr const char* kNoGpu = "none";

// For the notes of ranks whose exchange fails too.
constexpr std::chrono::seconds kLeastPatience{3};
constexpr std::chrono::seconds kMostPatience{5};

class C10dWorld final : public Backend {
 public:
  C10dWorld(const RankEnvironment& environment, const WorldOptions& options)
      : environment_(environment),
        timeout_(timeout_of(options, environment)),
        device_(device_of_rank(options.device, environment.local_rank)),
        reduce_scatter_(options.reduce_scatter),
        // NCCL opens further connections to the store.
        rendezvous_(meet(environment, timeout_, /*closes_store=*/device_.is_cpu())),
        progress_(std::make_shared<StoreBoard>(rendezvous_.store, environment.world_size)),
        reports_(progress_, environment.rank, timeout_),
        listener_(reachable_address()),
        connecting_(c10::make_intrusive<c10d::PrefixStore>("sherd/nccl", rendezvous_.store),
                    {rank(), size(), with_interface(own_address()),
                     [port = *environment.master_port, timeout = timeout_] {
                       limit_connections_to(port, timeout);
                     }},
                    timeout_) {
    control_ = std::make_unique<C10dCommunicator>(groups({0, 1, size()}));
    listener_.set_accepting(false);
    gpus_ = control_->all_gather_bytes(
        device_.is_cpu() ? kNoGpu : gpus().all[static_cast<size_t>(device_.index())].uuid);
    check_same_kind_of_device();
    check_reduce_scatter();
    if (device_.is_cpu()) {
      share_memory_ = meet_on_hosts(
          rank(), options.transport, timeout_,
          [this](const std::string& text) { return control_->all_gather_bytes(text); });
    } else if (options.transport == Transport::SharedMemory) {
      throw Error(ExitCode::Unavailable,
                  "[World] ranks with GPUs do not exchange over shared memory: leave "
                  "WorldOptions::transport at Automatic.");
    }
  }

  [[nodiscard]] int rank() const override { return environment_.rank; }
  [[nodiscard]] int size() const override { return environment_.world_size; }
  [[nodiscard]] int local_rank() const override { return environment_.local_rank; }
  [[nodiscard]] c10::Device device() const override { return device_; }
  [[nodiscard]] int local_size() const override { return environment_.local_world_size; }
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group) override {
    const WithoutSigpipe errors_not_signals;  // of the threads that Gloo starts
    listener_.set_accepting(true);
    control_->barrier();  // others may connect from here on
    auto communicator = device_.is_cpu() ? connected_communicator(group) : on_device(group);
    // One that lets go of its end at once would break a connection that another has yet to notice.
    control_->barrier();
    listener_.set_accepting(false);
    return communicator;
  }
  [[nodiscard]] std::optional<Wait> waiting() const override { return board_->read(); }
  void report_progress(const std::string& what, std::chrono::milliseconds limit) override {
    reports_.put(what, limit);
  }
  [[nodiscard]] Communicator& control() override { return *control_; }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    return control_->all_gather_bytes(text);
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    control_->broadcast_bytes(data, bytes, root);
  }
  void send(void* data, int64_t bytes, int from, int to) override {
    control_->send_bytes(data, bytes, from, to);
  }

 private:
  std::unique_ptr<Communicator> connected_communicator(const RankGroup& group) {
    if (auto host = share_memory_(group, notes_of(group))) {
      if (host->group().size() < group.size) {
        return make_hosts_communicator(groups(group), std::move(*host));
      }
      ++communicators_;  // others of the world may be making one over process groups
      return make_shared_memory_communicator(std::move(*host));
    }
    if (group.size == 1) {
      ++communicators_;  // the others of the world may be making one
      return std::make_unique<LocalCommunicator>();
    }
    return std::make_unique<C10dCommunicator>(groups(group));
  }

  std::unique_ptr<Communicator> on_device(const RankGroup& group) {
    if (group.size == 1) {
      ++communicators_;
      connecting_.on_all_ranks(nullptr);
      return std::make_unique<LocalCommunicator>();
    }
    if (const auto shared = shared_gpu(gpus_, group)) {
      const std::string why = "ranks " + std::to_string(shared->rank) + " and " +
                              std::to_string(shared->other) + " share " + shared->gpu;
      if (rank() == group.first) {
        TORCH_WARN_ONCE("[World] ranks exchange by way of the host, which is slow: ", why,
                        ", and NCCL takes one rank a GPU.");
      }
      auto over_host = std::make_unique<C10dCommunicator>(groups(group));
      connecting_.on_all_ranks(nullptr);
      return make_staged_communicator(std::move(over_host), why);
    }
    auto made = std::make_shared<std::optional<ProcessGroups>>();
    connecting_.on_all_ranks([made, make = nccl_groups(group), device = device_] {
      connect_groups(made->emplace(make()), device);
    });
    return make_device_communicator(std::move(made->value()), device_, reduce_scatter_);
  }

  void check_same_kind_of_device() const {
    for (size_t other = 1; other < gpus_.size(); ++other) {
      if ((gpus_[other] == kNoGpu) != (gpus_[0] == kNoGpu)) {
        const std::string with = std::to_string(gpus_[0] == kNoGpu ? other : 0);
        const std::string without = std::to_string(gpus_[0] == kNoGpu ? 0 : other);
        throw Error(ExitCode::RanksDisagree,
                    "[World] rank " + with + " computes on a GPU, and rank " + without +
                        " on the CPU: all ranks compute on one kind of device. Look at what is "
                        "missing there, or have all compute on the CPU.");
      }
    }
  }

  void check_reduce_scatter() {
    const bool is_native = reduce_scatter_ == ReduceScatter::Native;
    if (is_native && device_.is_cpu()) {
      throw Error(ExitCode::Unavailable,
                  "[World] ranks without GPUs have no reduce-scatter of NCCL's: leave "
                  "reduce_scatter at rank order.");
    }
    std::vector<double> natives{is_native ? 1.0 : 0.0};
    if (!device_.is_cpu()) {
      control_->all_reduce(natives, ReduceOp::Sum);
    }
    if (natives[0] != (is_native ? size() : 0)) {
      throw Error(ExitCode::RanksDisagree,
                  "[World] rank " + std::to_string(rank()) + " sums gradients " +
                      (is_native ? "by NCCL's reduce-scatter" : "in rank order") +
                      ", and others do not: set reduce_scatter alike on all ranks.");
    }
  }

  [[nodiscard]] std::string own_address() const {
    return environment_.all_local
               ? "127.0.0.1"
               : local_address_towards(rendezvous_.address, *environment_.master_port);
  }

  [[nodiscard]] std::string reachable_address() const {
    std::string address = own_address();
    if (!environment_.all_local) {
      check_reachable(*rendezvous_.store, environment_, address, timeout_);
    }
    return address;
  }

  c10::intrusive_ptr<c10d::Backend> connect(const std::string& name, const RankGroup& ranks) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout_);
    options->devices.push_back(listener_.interface());
    auto store = c10::make_intrusive<c10d::PrefixStore>(name, rendezvous_.store);
    try {
      auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, ranks.index_of(rank()),
                                                               ranks.size, options);
      group->setTimeout(launch::kLongestTimeout);  // waits look at progress: await()
      return group;
    } catch (const Error&) {
      throw;  // of the store
    } catch (const std::exception& error) {
      throw Error(ExitCode::PeerLost, "connecting the ranks failed on rank " +
                                          std::to_string(rank()) + ": " + message_of(error));
    }
  }

  // One for all communicators: a rank may be waiting in another one.
  FailureNotes notes_of(const RankGroup& ranks) {
    using std::chrono::milliseconds;
    const milliseconds patience =
        std::min(timeout_, std::clamp<milliseconds>(timeout_ / 4, kLeastPatience, kMostPatience));
    return {c10::make_intrusive<c10d::PrefixStore>("sherd/roster", rendezvous_.store),
            ranks,
            rank(),
            patience,
            board_,
            progress_,
            timeout_,
            [port = *environment_.master_port](milliseconds limit) {
              limit_connections_to(port, limit);
            }};
  }

  std::string next_name(const RankGroup& ranks) {
    return "sherd/" + std::to_string(communicators_++) + "/" + std::to_string(ranks.first);
  }

  // It may outlive this world.
  std::function<ProcessGroups()> nccl_groups(const RankGroup& ranks) {
    return [ranks, name = next_name(ranks), whole = rendezvous_.store, own = ranks.index_of(rank()),
            timeout = timeout_, notes = notes_of(ranks)] {
      const CudaFunctions& cuda = cuda_functions();
      const auto made = [&](const std::string& purpose) {
        auto store = c10::make_intrusive<c10d::PrefixStore>(name + purpose, whole);
        return cuda.make_nccl_group(store, own, ranks.size, timeout);
      };
      return ProcessGroups{made("/gather"), made("/reduce"), notes, cuda.last_nccl_error,
                           "NCCL " + cuda.nccl_version()};
    };
  }

  ProcessGroups groups(const RankGroup& ranks) {
    const std::string name = next_name(ranks);
    return {connect(name + "/gather", ranks), connect(name + "/reduce", ranks), notes_of(ranks)};
  }

  RankEnvironment environment_;
  std::chrono::milliseconds timeout_;
  c10::Device device_;
  ReduceScatter reduce_scatter_;
  std::vector<std::string> gpus_;  ///< by rank
  std::shared_ptr<CurrentWait> board_ = std::make_shared<CurrentWait>();
  Rendezvous rendezvous_;
  std::shared_ptr<ProgressBoard> progress_;
  OwnReports reports_;
  GlooListener listener_;
  Connecting connecting_;
  std::unique_ptr<C10dCommunicator> control_;
  ShareMemory share_memory_;  ///< without GPUs
  int communicators_ = 0;
};

}  // namespace

std::shared_ptr<Backend> make_world_from_environment(const WorldOptions& options) {
  const RankEnvironment environment = launch::detect(launch::process_environment);
  if (environment.world_size == 1) {
    return make_local_world(device_of_rank(options.device, 0));
  }
  const WithoutSigpipe errors_not_signals;  // of the threads that Gloo starts
  return std::make_shared<C10dWorld>(environment, options);
}

}  // namespace sherd::detail
