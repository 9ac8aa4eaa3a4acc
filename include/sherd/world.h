#pragma once
// The processes that train together: who am I, how many are we, and how to reach the others.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sherd/backend.h"
#include "sherd/communicator.h"

namespace sherd {

/// What carries parameters and gradients between ranks. PyTorch: the backend of a process group.
enum class Transport : std::uint8_t {
  Automatic,     ///< shared memory where all ranks of a group are on one host and have no GPU; else
                 ///< process groups
  SharedMemory,  ///< shared memory; Error(Unavailable) where a group cannot have it
  ProcessGroups,  ///< c10d: Gloo, or NCCL between GPUs
};

/// How GPUs that exchange over NCCL sum gradients.
enum class ReduceScatter : std::uint8_t {
  /// All-to-all in the dtype that travels, and each rank adds up its piece in fp32 and rank order:
  /// the same bits as any other way of exchange, and as one rank that accumulates.
  RankOrder,
  /// NCCL's reduce-scatter in `reduce_dtype`, which switches may compute (NVLS, SHARP): bits depend
  /// on the number of ranks and on NCCL's choice of an algorithm. Receives one rank's piece in the
  /// place of all, where `param_dtype` is `reduce_dtype`; where it is not, gradients are first
  /// copied into `reduce_dtype`, which takes more memory and traffic than the other way. PyTorch:
  /// FSDP2's `reduce_scatter_tensor`.
  Native,
};

/// How World::from_environment() waits for the others and reaches them.
struct WorldOptions {
  /// Of waiting, where neither `timeout` nor the environment says otherwise.
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(10);
  /// How long a rank waits for another, in the rendezvous and in each collective, before it gives
  /// up: up to seven days. Longer than anything that one rank does alone. Where it is not set, what
  /// the environment says in seconds (SHERD_TIMEOUT, `sherd launch --timeout`), else
  /// kDefaultTimeout.
  std::optional<std::chrono::milliseconds> timeout = {};
  /// Where models live and are computed: the CPU, or c10::kCUDA for the GPU of the rank's number on
  /// its host (modulo the GPUs there are), which becomes the current device of the calling thread;
  /// other threads that use CUDA set it themselves. Ranks with a GPU each exchange over NCCL; where
  /// several share one, over the host. PyTorch: `torch.cuda.set_device`.
  c10::DeviceType device = c10::DeviceType::CPU;
  /// What carries parameters and gradients; the same on every rank. Rendezvous, numbers and texts
  /// of the World itself go over process groups in any case.
  Transport transport = Transport::Automatic;
  /// How gradients are summed; the same on every rank. Ranks that share a GPU, or are alone, sum in
  /// rank order in any case.
  ReduceScatter reduce_scatter = ReduceScatter::RankOrder;
};

/// Ranks that are not there, for World::fake().
struct FakeRanks {
  int size = 1;        ///< ranks in all
  int local_size = 1;  ///< of each host
  /// Whose memory and exchange are imitated: over shared memory or process groups on the CPU, over
  /// NCCL with c10::kCUDA. Neither has to be there.
  c10::DeviceType device = c10::DeviceType::CPU;
  /// As WorldOptions::transport; process groups on the CPU share no memory.
  Transport transport = Transport::Automatic;
  ReduceScatter reduce_scatter = ReduceScatter::RankOrder;  ///< as WorldOptions::reduce_scatter
};

/// The ranks of a run. A value: copies name the same world, which ends with the last of them. One
/// thread a rank uses it and its copies at a time, but for waiting(). PyTorch: `init_process_group`
/// and the default group.
class World {
 public:
  /// The world that the launcher describes in the environment: `sherd launch` and torchrun (`RANK`,
  /// `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), a Slurm step, Open MPI, PMI; a world of one where
  /// nothing is set. Collective: returns when all ranks have met. Binds loopback only where all
  /// ranks are on this host, else the interface that leads to the first. Throws Error: Usage for
  /// values that make no sense, Unavailable for a port or address that is not free, PeerLost when
  /// others do not come within the timeout, RanksDisagree where WorldOptions::transport or
  /// reduce_scatter differs; Unavailable also for a device that is not there, shared memory between
  /// GPUs, or ReduceScatter::Native without GPUs. Collectives throw Error: PeerLost where another
  /// rank is gone, Hang where one is silent for longer than the timeout, RanksDisagree where ranks
  /// are out of step.
  static World from_environment(const WorldOptions& options = {});
  /// A world of one: no process group, no collective. Throws Error(Unavailable) for a device that
  /// this build or machine does not have.
  static World alone(c10::DeviceType device = c10::DeviceType::CPU);
  /// `size` ranks, at least 1, on threads of this process and on the CPU, for tests and examples:
  /// element r is to be used on one thread of its own. All draw from LibTorch's one generator, in
  /// whichever order they come: a model with dropout does not repeat its numbers from run to run,
  /// nor in a checkpointed unit those of its first forward. Ranks that are processes do. Not
  /// collective.
  static std::vector<World> in_process(
      int size, std::chrono::milliseconds timeout = std::chrono::seconds(60));
  /// Rank 0 of many that are not there, on the meta device: whatever is collective returns at once,
  /// as if all had said the same. A model over it holds no numbers, but its ledger counts what a
  /// rank would hold, and an observer is told what a rank would exchange: for plans, before there
  /// are machines. Give parameters values by ParameterInit::fill_constant(), which costs nothing
  /// there. Not collective. Throws Error(Usage) for ranks that do not fill their hosts. PyTorch:
  /// the backend "fake" of torch.distributed.
  static World fake(const FakeRanks& ranks);
  /// A world of ranks that the caller has connected. Not collective. Throws Error(Usage) for null,
  /// or for a rank that is not one of the size.
  static World over(std::shared_ptr<Backend> backend);

  /// The ranks of a group as a world of their own, which trains apart from the others: halves that
  /// train two models, or a row of a mesh. Each rank passes the group that it is in, every rank of
  /// this world is in one, and rank `group.index_of(rank())` of the part is this one. Collective
  /// over this world; so is whatever makes communicators over a part (fully_shard(), subset()), as
  /// in PyTorch all ranks enter `new_group`: all parts do so equally often. All else is collective
  /// over the part alone. Messages name ranks by their number in this world. Throws Error: Usage
  /// for a group that does not hold this rank or holds more than the world; PeerLost. PyTorch: a
  /// slice of a `DeviceMesh`.
  [[nodiscard]] World subset(const RankGroup& group);

  /// Which of the ranks this is, from 0. PyTorch: `get_rank`.
  [[nodiscard]] int rank() const;
  /// How many ranks there are. PyTorch: `get_world_size`.
  [[nodiscard]] int size() const;
  /// Position among the ranks of this host.
  [[nodiscard]] int local_rank() const;
  /// Where models of this world live and are computed.
  [[nodiscard]] c10::Device device() const;
  /// The kind of device(); of World::fake(), whose device is meta, the kind that it imitates.
  [[nodiscard]] c10::DeviceType device_type() const;
  /// Ranks of this host.
  [[nodiscard]] int local_size() const;

  /// What this rank waits for at this moment, if anything; nothing in a world of one or of threads.
  /// Not collective; any thread may ask, also while another waits.
  [[nodiscard]] std::optional<Wait> waiting() const;

  /// Tells the other ranks that this one works, for example "step 12" or "writing shard 0: 64 of
  /// 512 MiB". A wait for other ranks ends (Error, Hang) when no rank has reported progress for the
  /// whole timeout; its message says what the missing ranks reported last. Cheap: at most one
  /// message per second leaves the process. Not collective; any thread. No effect in a world of
  /// one. PyTorch: the heartbeat of the watchdog.
  void report_progress(const std::string& what) const;

  /// Reduces each value over all ranks, in rank order: the same bits everywhere. Collective.
  void all_reduce(std::span<double> values, ReduceOp op = ReduceOp::Sum);
  /// Each rank's text, by rank. Collective. PyTorch: `all_gather_object`.
  std::vector<std::string> all_gather(const std::string& text);
  /// Copies `bytes` bytes from `data` of rank `root` to `data` of every other rank. Collective: all
  /// ranks give the same `root` and `bytes`. Throws Error: Usage for a root that is no rank or
  /// negative bytes; RanksDisagree where threads give other `bytes` than the root; PeerLost.
  /// PyTorch: `broadcast`.
  void broadcast(void* data, int64_t bytes, int root);
  /// Copies `bytes` bytes from `data` of rank `from` to `data` of rank `to`; the others' `data` is
  /// ignored. Does nothing where `from` is `to`. Collective: all ranks give the same numbers. Ranks
  /// that neither send nor receive return at once where the transport allows it (processes).
  /// Throws Error: Usage for a number that is no rank or negative bytes; RanksDisagree where
  /// threads give other `bytes` than the sender; PeerLost. PyTorch: `send` and `recv`.
  void send(void* data, int64_t bytes, int from, int to);
  /// Returns when all ranks have called it. Collective.
  void barrier();

  /// A communicator of its own over the group that this rank is in. Collective over the world, also
  /// where ranks pass different groups. Throws Error: PeerLost; Unavailable where
  /// WorldOptions::transport asks for shared memory that the group cannot have.
  [[nodiscard]] std::unique_ptr<Communicator> make_communicator(const RankGroup& group);
  /// What carries the communicators of this rank, for people, the latest last: "shared memory",
  /// "process groups (gloo)", "NCCL 2.28.9, gradients in rank order"; empty as long as none was
  /// made. Not collective.
  [[nodiscard]] std::string transport() const;

  /// Who is told of the collectives of this rank from now on: of the World itself, and of
  /// communicators that are made later. Worlds that subset() returns have observers of their own.
  /// Null for nobody. Not collective. PyTorch: the flight recorder.
  void set_observer(std::shared_ptr<CollectiveObserver> observer);
  /// What this World is made over, to be wrapped in another.
  [[nodiscard]] const std::shared_ptr<Backend>& backend() const;

 private:
  struct State;
  explicit World(std::shared_ptr<Backend> backend);
  std::shared_ptr<State> state_;
};

/// Work of one rank that others wait for: reading, preparing, writing. While the object lives, the
/// other ranks wait for `limit` without news instead of the timeout, if that is longer, and the
/// messages of waits that end name this phase. Not collective. PyTorch: none.
class WorkPhase {
 public:
  /// `name` for people: "saving checkpoint step-00000012". `limit`: the longest that this rank
  /// works without a report(); 0: the timeout of the world.
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

}  // namespace sherd
