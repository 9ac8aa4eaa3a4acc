#pragma once
// The processes that train together: who am I, how many are we, and how to reach the others.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sherd/communicator.h"

namespace sherd {

namespace detail {
class WorldImpl;
struct WorldAccess;
}  // namespace detail

/// Ranks first, first + stride, …: a row or a column of a mesh.
struct RankGroup {
  int first = 0;   ///< rank of the world
  int stride = 1;  ///< between neighbours
  int size = 1;    ///< ranks in the group
  /// Position of a rank of the world in the group.
  [[nodiscard]] int index_of(int rank) const { return (rank - first) / stride; }
  /// The rank of the world at a position of the group.
  [[nodiscard]] int rank_at(int index) const { return first + index * stride; }
};

/// What carries parameters and gradients between ranks. PyTorch: the backend of a process group.
enum class Transport : std::uint8_t {
  Automatic,     ///< shared memory where all ranks of a group are on one host and have no GPU; else
                 ///< process groups
  SharedMemory,  ///< shared memory; Error(Unavailable) where a group cannot have it
  ProcessGroups,  ///< c10d: Gloo, or NCCL between GPUs
};

/// How World::from_environment() waits for the others and reaches them.
struct WorldOptions {
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(10);
  /// How long a rank waits for another, in the rendezvous and in each collective, before it gives
  /// up: up to seven days. Longer than anything that one rank does alone. Where it is not set, what
  /// the environment says in seconds (SHERD_TIMEOUT, `sherd launch --timeout`), else
  /// kDefaultTimeout.
  std::optional<std::chrono::milliseconds> timeout = {};
  /// Where models live and are computed: the CPU, or c10::kCUDA for the GPU of the rank's number on
  /// its host (modulo the GPUs there are). Ranks with a GPU each exchange over NCCL; where several
  /// share one, over the host.
  c10::DeviceType device = c10::DeviceType::CPU;
  /// What carries parameters and gradients; the same on every rank. Rendezvous, numbers and texts
  /// of the World itself go over process groups in any case.
  Transport transport = Transport::Automatic;
};

/// A collective that a rank waits in.
struct Wait {
  std::string what;  ///< for people: "all-gather of unit 'block3'"
  std::chrono::steady_clock::time_point since;
};

/// The ranks of a run. A value: copies name the same world, which ends with the last of them.
/// PyTorch: `init_process_group` and the default group.
class World {
 public:
  /// The world that the launcher describes in the environment: `sherd launch` and torchrun (`RANK`,
  /// `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), a Slurm step, Open MPI, PMI; a world of one where
  /// nothing is set. Collective: returns when all ranks have met. Binds loopback only where all
  /// ranks are on this host, else the interface that leads to the first. Throws Error: Usage for
  /// values that make no sense, Unavailable for a port or address that cannot be had, PeerLost when
  /// others do not come within the timeout. Collectives throw Error: PeerLost where another rank is
  /// gone, Hang where one is silent for longer than the timeout.
  static World from_environment(const WorldOptions& options = {});
  /// A world of one: no process group, no collective. Throws Error(Unavailable) for a device that
  /// this build or machine does not have.
  static World alone(c10::DeviceType device = c10::DeviceType::CPU);
  /// `size` ranks on threads of this process, for tests and examples: element r is to be used on
  /// one thread of its own.
  static std::vector<World> in_process(
      int size, std::chrono::milliseconds timeout = std::chrono::seconds(60));

  /// Which of the ranks this is, from 0. PyTorch: `get_rank`.
  [[nodiscard]] int rank() const;
  /// How many ranks there are. PyTorch: `get_world_size`.
  [[nodiscard]] int size() const;
  /// Position among the ranks of this host.
  [[nodiscard]] int local_rank() const;
  /// Where models of this world live and are computed.
  [[nodiscard]] c10::Device device() const;
  /// Ranks of this host.
  [[nodiscard]] int local_size() const;

  /// What this rank waits for at this moment, if anything; nothing in a world of one or of threads.
  /// Not collective; any thread may ask, also while another waits.
  [[nodiscard]] std::optional<Wait> waiting() const;

  /// Reduces each value over all ranks, in rank order: the same bits everywhere. Collective.
  void all_reduce(std::span<double> values, ReduceOp op = ReduceOp::Sum);
  /// Each rank's text, by rank. Collective. PyTorch: `all_gather_object`.
  std::vector<std::string> all_gather(const std::string& text);
  /// Copies `bytes` bytes from `data` of rank `root` to `data` of every other rank. Collective: all
  /// ranks give the same `root` and `bytes`. Throws Error: Usage for a root that is no rank or
  /// negative bytes; RanksDisagree where threads give other `bytes` than the root; PeerLost.
  /// PyTorch: `broadcast`.
  void broadcast(void* data, int64_t bytes, int root);
  /// Returns when all ranks have called it. Collective.
  void barrier();

  /// A communicator of its own over the group that this rank is in. Collective over the world, also
  /// where ranks pass different groups. Throws Error: PeerLost; Unavailable where
  /// WorldOptions::transport asks for shared memory that the group cannot have.
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group);

 private:
  friend struct detail::WorldAccess;
  explicit World(std::shared_ptr<detail::WorldImpl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<detail::WorldImpl> impl_;
};

}  // namespace sherd
