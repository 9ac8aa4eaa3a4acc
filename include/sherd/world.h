#pragma once
// The processes of a training run: this rank, their number, the connections between them, and the
// mesh that they form.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sherd/backend.h"
#include "sherd/communicator.h"
#include "sherd/options.h"

namespace sherd {

/// The transport of parameters and gradients between ranks. PyTorch: the backend of a process
/// group.
enum class Transport : std::uint8_t {
  /// Shared memory if all ranks of a group are on one host without a GPU; otherwise process groups.
  Automatic,
  SharedMemory,   ///< shared memory; Error(Unavailable) if a group cannot use it
  ProcessGroups,  ///< c10d: Gloo, or NCCL between GPUs
};

/// Method by which ranks that use NCCL sum gradients.
enum class ReduceScatter : std::uint8_t {
  /// All-to-all in the dtype on the wire; each rank then sums its shard in fp32 and rank order. The
  /// result has the same bits as with every other transport, and as on one rank that accumulates.
  RankOrder,
  /// NCCL's reduce-scatter in `reduce_dtype`, possibly computed in switches (NVLS, SHARP). Bits
  /// depend on the number of ranks and on NCCL's choice of algorithm. If `param_dtype` is
  /// `reduce_dtype`, the receive buffer holds one rank's shard instead of all ranks' shards.
  /// Otherwise gradients are first copied into `reduce_dtype`, which takes more memory and traffic
  /// than RankOrder. PyTorch: FSDP2's `reduce_scatter_tensor`.
  Native,
};

/// Options of World::from_environment().
struct WorldOptions {
  /// Timeout if neither `timeout` nor the environment sets one.
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(10);
  /// Timeout of a wait for other ranks, at startup and in each collective; at most seven days. It
  /// must exceed any work that one rank does alone. Unset: the
  /// environment's value in seconds (SHERD_TIMEOUT, `sherd launch --timeout`), else
  /// kDefaultTimeout.
  std::optional<std::chrono::milliseconds> timeout = {};
  /// Device that holds and computes the models. With c10::kCUDA, a rank uses the GPU with its local
  /// rank (modulo the number of GPUs). That GPU becomes the current device of the calling thread.
  /// Other threads that use CUDA must set it themselves. Ranks with a GPU each exchange over NCCL;
  /// ranks that share a GPU exchange over the host. PyTorch: `torch.cuda.set_device`.
  c10::DeviceType device = c10::DeviceType::CPU;
  /// Transport of parameters and gradients; the same on every rank. The World's own rendezvous,
  /// numbers and texts always use process groups.
  Transport transport = Transport::Automatic;
  /// How gradients are summed; the same on every rank. Ranks that share a GPU, and single ranks,
  /// always sum in rank order.
  ReduceScatter reduce_scatter = ReduceScatter::RankOrder;
};

/// Ranks for World::fake(); they need not exist.
struct FakeRanks {
  int size = 1;        ///< total number of ranks
  int local_size = 1;  ///< ranks per host
  /// Device whose memory and exchange are imitated: shared memory or process groups on the CPU,
  /// NCCL with c10::kCUDA. Neither needs to be available.
  c10::DeviceType device = c10::DeviceType::CPU;
  /// As WorldOptions::transport; process groups on the CPU do not share memory.
  Transport transport = Transport::Automatic;
  ReduceScatter reduce_scatter = ReduceScatter::RankOrder;  ///< as WorldOptions::reduce_scatter
};

/// The ranks of a run. A value: copies name the same world, which ends with its last copy. One
/// thread per rank uses a world and its copies at a time; any thread may call waiting(). PyTorch:
/// `init_process_group` and the default group.
class World {
 public:
  /// Creates the world described by the launcher's environment: `sherd launch` and torchrun
  /// (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), a Slurm step, Open MPI, PMI. Without any
  /// of them it creates a world of one rank. Collective: blocks until all ranks have connected.
  /// Binds loopback if all ranks are on this host, else the interface that leads to rank 0.
  ///
  /// Throws Error: Usage for invalid values; PeerLost if ranks do not connect within the timeout;
  /// RanksDisagree if WorldOptions::transport or reduce_scatter differ. Throws Error(Unavailable)
  /// if a port or an address is in use, for a missing device, for shared memory between GPUs, and
  /// for ReduceScatter::Native without GPUs. Collectives throw Error: PeerLost if another rank has
  /// ended, Hang if one is silent for longer than the timeout, RanksDisagree if ranks are out of
  /// step.
  static World from_environment(const WorldOptions& options = {});
  /// Creates a world of one rank: no process group, no collective. Throws Error(Unavailable) if
  /// this build or machine lacks the device.
  static World alone(c10::DeviceType device = c10::DeviceType::CPU);
  /// Creates `size` ≥ 1 ranks on CPU threads of this process, for tests and examples. Use element r
  /// on one thread of its own. All ranks draw from LibTorch's one random generator, in any order.
  /// With dropout, results therefore differ between runs, and the recomputation of a checkpointed
  /// unit draws other numbers than its forward. Ranks in separate processes repeat both. Not
  /// collective.
  static std::vector<World> in_process(
      int size, std::chrono::milliseconds timeout = std::chrono::seconds(60));
  /// Creates rank 0 of `ranks.size` fake ranks on the meta device. Every collective returns at
  /// once, as if all ranks had passed the same values. A model on it holds no numbers, but its
  /// ledger counts the bytes of a real rank, and an observer sees the exchanges of a real rank. Use
  /// it for plans without machines. Fill parameters with ParameterInit::fill_constant(), which is
  /// free there. Not collective. Throws Error(Usage) if the ranks do not fill their hosts. PyTorch:
  /// the backend "fake" of torch.distributed.
  static World fake(const FakeRanks& ranks);
  /// Creates a world over ranks that the caller has connected. Not collective. Throws Error(Usage)
  /// for null, or for a rank outside 0…size−1.
  static World over(std::shared_ptr<Backend> backend);

  /// Returns the ranks of a group as a separate world that trains independently: two halves that
  /// train two models, or a row of a mesh. Each rank passes its own group, and every rank of this
  /// world belongs to one. This rank becomes rank `group.index_of(rank())` of the new world.
  ///
  /// Collective over this world. Calls that create communicators over a subset (fully_shard(),
  /// subset()) are also collective over this world, as all ranks enter `new_group` in PyTorch: all
  /// subsets must make them equally often. Everything else is collective over the subset alone.
  /// Messages use the rank numbers of this world. Throws Error: Usage for a group that does not
  /// contain this rank or is larger than the world; PeerLost. PyTorch: a slice of a `DeviceMesh`.
  [[nodiscard]] World subset(const RankGroup& group);

  /// Returns this rank, from 0. PyTorch: `get_rank`.
  [[nodiscard]] int rank() const;
  /// Returns the number of ranks. PyTorch: `get_world_size`.
  [[nodiscard]] int size() const;
  /// Returns this rank's position among the ranks of its host.
  [[nodiscard]] int local_rank() const;
  /// Returns the device that holds and computes the models.
  [[nodiscard]] c10::Device device() const;
  /// Returns the type of device(); for World::fake(), whose device is meta, the type that it
  /// imitates.
  [[nodiscard]] c10::DeviceType device_type() const;
  /// Returns the number of ranks on this host.
  [[nodiscard]] int local_size() const;

  /// Returns what this rank is waiting for, if anything; nothing in a world of one rank or of
  /// threads. Not collective; any thread may call it, also during a wait.
  [[nodiscard]] std::optional<Wait> waiting() const;

  /// Reports to the other ranks that this one is working: "step 12", "writing shard 0: 64 of 512
  /// MiB". A wait for other ranks fails with Error(Hang) when no rank has reported progress for the
  /// whole timeout. Its message includes the last report of the missing ranks. Cheap: at most one
  /// message per second leaves the process. Not collective; any thread. No effect in a world of one
  /// rank. PyTorch: the heartbeat of the watchdog.
  void report_progress(const std::string& what) const;

  /// Reduces each value over all ranks, in rank order: the same bits everywhere. Collective.
  void all_reduce(std::span<double> values, ReduceOp op = ReduceOp::Sum);
  /// Returns each rank's text, indexed by rank. Collective. PyTorch: `all_gather_object`.
  std::vector<std::string> all_gather(const std::string& text);
  /// Copies `bytes` bytes from `data` of rank `root` to `data` of every other rank. Collective: all
  /// ranks pass the same `root` and `bytes`. Throws Error: Usage for an invalid root or negative
  /// bytes; RanksDisagree if a thread's `bytes` differs from the root's; PeerLost. PyTorch:
  /// `broadcast`.
  void broadcast(void* data, int64_t bytes, int root);
  /// Copies `bytes` bytes from `data` of rank `from` to `data` of rank `to`, and ignores `data` of
  /// other ranks. Does nothing if `from` equals `to`. Collective: all ranks pass the same numbers.
  /// Other ranks return at once if the transport allows it (processes). Throws Error: Usage for an
  /// invalid rank or negative bytes; RanksDisagree if a thread's `bytes` differs from the sender's;
  /// PeerLost. PyTorch: `send` and `recv`.
  void send(void* data, int64_t bytes, int from, int to);
  /// Blocks until all ranks have called it. Collective.
  void barrier();

  /// Returns a separate communicator over the group of this rank. Collective over the world, also
  /// if ranks pass different groups. Throws Error: PeerLost; Unavailable if WorldOptions::transport
  /// requires shared memory that the group cannot use.
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group);
  /// Returns the readable transports of this rank's communicators, each once, the newest last:
  /// "shared memory", "process groups (gloo)", "NCCL 2.28.9, gradients in rank order". "nothing
  /// (one rank)" if none is of several ranks. Empty before the first communicator. Not collective.
  [[nodiscard]] std::string transport() const;

  /// Sets the observer of this rank's collectives from now on: those of the World itself, and of
  /// communicators created later. Worlds from subset() have their own observers. Null removes it.
  /// Not collective. PyTorch: the flight recorder.
  void set_observer(std::shared_ptr<CollectiveObserver> observer);
  /// Returns the back end of this World, for use in a wrapper.
  [[nodiscard]] const std::shared_ptr<Backend>& backend() const;

 private:
  struct State;
  explicit World(std::shared_ptr<Backend> backend);
  std::shared_ptr<State> state_;
};

/// A phase of work on one rank while others wait: reading, preparing, writing. During its lifetime
/// the other ranks accept `limit` without news if that is longer than the timeout. Messages of
/// waits that fail name this phase. Not collective. PyTorch: none.
class WorkPhase {
 public:
  /// `name`: readable text, such as "saving checkpoint step-00000012". `limit`: the longest time
  /// that this rank works without a report(); 0 means the world's timeout.
  WorkPhase(World world, std::string name,
            std::chrono::milliseconds limit = std::chrono::milliseconds(0));
  ~WorkPhase();
  WorkPhase(const WorkPhase&) = delete;
  WorkPhase& operator=(const WorkPhase&) = delete;
  /// Reports progress: "12 of 40 MiB". Any thread.
  void report(const std::string& how_far) const;

 private:
  World world_;
  std::string name_;
  std::chrono::milliseconds limit_;
};

/// A mesh of one or two dimensions, replicate × shard. A row (the shard group, consecutive ranks)
/// shards each parameter, and each row holds a copy of the model. Rank r is in row r ÷ shard_size()
/// and holds shard r mod shard_size(). A value; the thread rules of its World apply. PyTorch:
/// `DeviceMesh`.
class Mesh {
 public:
  /// Returns a mesh with one row of all ranks.
  [[nodiscard]] static Mesh shard(World world);
  /// Returns a mesh with rows of `shard_size` consecutive ranks, for Strategy::HybridShard and
  /// HybridShardGradOp. Put the ranks of one host in a row, so that only gradient sums cross hosts.
  /// Throws Error(Usage) unless shard_size divides the number of ranks.
  [[nodiscard]] static Mesh hybrid(World world, int shard_size);
  /// Returns shard() or hybrid(), as the strategy requires. Without `shard_size`, a row of a hybrid
  /// mesh is the ranks of one host. Throws Error(Usage) as hybrid() does.
  [[nodiscard]] static Mesh of_strategy(World world, Strategy strategy,
                                        std::optional<int> shard_size = std::nullopt);

  /// Returns the world of all ranks of the mesh.
  [[nodiscard]] World& world() { return world_; }
  /// Returns the world of all ranks of the mesh.
  [[nodiscard]] const World& world() const { return world_; }
  /// Returns 1 for a mesh from shard(), 2 for one from hybrid().
  [[nodiscard]] int dimensions() const { return dimensions_; }
  /// Returns the number of ranks that shard a parameter.
  [[nodiscard]] int shard_size() const { return shard_size_; }
  /// Returns which shard of each parameter this rank holds.
  [[nodiscard]] int shard_rank() const { return world_.rank() % shard_size_; }
  /// Returns the number of copies of the model.
  [[nodiscard]] int replicate_size() const { return world_.size() / shard_size_; }
  /// Returns which copy this rank belongs to.
  [[nodiscard]] int replicate_rank() const { return world_.rank() / shard_size_; }

 private:
  Mesh(World world, int dimensions, int shard_size)
      : world_(std::move(world)), dimensions_(dimensions), shard_size_(shard_size) {}
  World world_;
  int dimensions_;
  int shard_size_;
};

}  // namespace sherd
