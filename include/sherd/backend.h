#pragma once
// The interface that a World is built on: the ranks and the connections between them. Derive from
// it to bring your own transport. Also the GPUs of this machine.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/communicator.h"

namespace sherd {

/// An arithmetic sequence of ranks (first, first + stride, …): a row or a column of a mesh.
struct RankGroup {
  int first = 0;   ///< rank in the world
  int stride = 1;  ///< distance between neighbouring ranks
  int size = 1;    ///< ranks in the group
  /// Returns the position of a world rank within the group.
  [[nodiscard]] int index_of(int rank) const { return (rank - first) / stride; }
  /// Returns the world rank at a position of the group.
  [[nodiscard]] int rank_at(int index) const { return first + index * stride; }
  /// Returns the number of group ranks per host, given hosts of `local_size` consecutive world
  /// ranks. Returns 1 if the number differs between hosts.
  [[nodiscard]] int ranks_of_a_host(int local_size) const {
    const auto host_of = [&](int index) { return rank_at(index) / local_size; };
    int block = 1;
    while (block < size && host_of(block) == host_of(0)) {
      ++block;
    }
    for (int index = 1; index < size; ++index) {
      if ((host_of(index) == host_of(index - 1)) != (index % block != 0)) {
        return 1;
      }
    }
    return size % block == 0 ? block : 1;
  }
};

/// A collective that a rank is waiting in.
struct Wait {
  std::string what;                             ///< readable text: "all-gather of unit 'block3'"
  std::chrono::steady_clock::time_point since;  ///< when the wait began
};

/// One rank's connection to the ranks that train with it. World::over() builds a World from it. One
/// thread per rank calls it, except waiting(), which any thread may call. PyTorch: a backend of
/// torch.distributed, registered with `Backend.register_backend`.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// Returns this rank, from 0.
  [[nodiscard]] virtual int rank() const = 0;
  /// Returns the number of ranks.
  [[nodiscard]] virtual int size() const = 0;
  /// Returns this rank's position among the ranks of its host.
  [[nodiscard]] virtual int local_rank() const { return rank(); }
  /// Returns the number of ranks on this host.
  [[nodiscard]] virtual int local_size() const { return size(); }
  /// Returns the device that holds and computes the models.
  [[nodiscard]] virtual c10::Device device() const { return c10::Device(c10::kCPU); }
  /// Returns the device type; for fake ranks, the type that they imitate.
  [[nodiscard]] virtual c10::DeviceType device_type() const { return device().type(); }
  /// Returns the collective that this rank is waiting in, if any. Any thread may call it, also
  /// during a wait.
  [[nodiscard]] virtual std::optional<Wait> waiting() const { return std::nullopt; }
  /// Implements World::report_progress(). `limit` has the meaning it has in WorkPhase, and is 0
  /// outside a phase. Does nothing in back ends whose waits ignore progress.
  virtual void report_progress(const std::string& /*what*/, std::chrono::milliseconds /*limit*/) {}

  /// Returns a communicator over the group of this rank, for one model. The caller calls attach()
  /// on it. Collective over the whole world, also if groups differ: rank r passes its own group.
  /// Must support groups of one rank.
  [[nodiscard]] virtual std::unique_ptr<Communicator> make_communicator(const RankGroup& group) = 0;
  /// Returns a communicator over all ranks for all_reduce() and barrier() outside any model; it
  /// needs no attach(). It lives as long as the back end.
  [[nodiscard]] virtual Communicator& control() = 0;

  /// Returns each rank's text, indexed by rank. Collective. The default uses control()'s
  /// all_reduce().
  [[nodiscard]] virtual std::vector<std::string> all_gather(const std::string& text);
  /// Copies `bytes` bytes from rank `root` to all ranks. Collective. Requires `bytes` > 0 and at
  /// least two ranks. The default uses control()'s all_reduce().
  virtual void broadcast(void* data, int64_t bytes, int root);
  /// Copies `bytes` > 0 bytes from `data` of rank `from` to `data` of rank `to`, a different rank.
  /// Collective, but a back end may return at once on the other ranks. The default is a
  /// broadcast(); the other ranks receive it into temporary memory.
  virtual void send(void* data, int64_t bytes, int from, int to);
};

/// A GPU as its driver describes it.
struct Gpu {
  std::string name;               ///< "NVIDIA H100 80GB HBM3"
  int major = 0;                  ///< compute capability: 9 in 9.0
  int minor = 0;                  ///< compute capability: 0 in 9.0
  std::int64_t memory_bytes = 0;  ///< total memory
  std::string uuid;               ///< "GPU-…", unique across hosts
  /// Returns true if the GPU multiplies bf16 natively. Sherd refuses bf16 on others.
  [[nodiscard]] bool has_bfloat16() const { return major >= 8; }
};

/// The GPUs that can be used for computation.
struct Gpus {
  std::vector<Gpu> all;  ///< by CUDA device number; only those that CUDA_VISIBLE_DEVICES shows
  /// Why no GPU can be used here, and what to do, in one sentence; empty if they can be used.
  std::string problem;
};

/// Queries the driver, once per process. If there is a GPU, loads libsherd_cuda.so with LibTorch's
/// GPU part. Call it, or create a World, before `torch::manual_seed()` and any backward: LibTorch
/// looks for GPUs only once. Do not fork the process afterwards. Throws nothing; Gpus::problem
/// reports faults. Any thread; not collective. PyTorch: `torch.cuda.is_available()`,
/// `get_device_properties()`.
[[nodiscard]] const Gpus& gpus();

/// Returns true if a thread of this process is still inside NCCL. One stays behind if ranks could
/// not be connected (Error(Unavailable)), and nothing can end it. Static destructors must not run
/// while it does. The program must write its output and then end by `_exit()`. Any thread; not
/// collective.
[[nodiscard]] bool thread_connects_in_nccl();

/// Reaction to a LibTorch operator that makes the host wait for a GPU: none, a warning on stderr,
/// or a c10::Error.
enum class SyncDebugMode : std::uint8_t { Default, Warn, Error };

/// Sets the mode for all threads from now on, to find host-device synchronisation. It detects reads
/// of values (`item()`), copies from or to memory that is not pinned, and shapes that depend on
/// values. Waits for events are not detected. Not collective. Throws Error(Unavailable) if no GPU
/// can be used. PyTorch: `torch.cuda.set_sync_debug_mode`.
void set_sync_debug_mode(SyncDebugMode mode);

}  // namespace sherd
