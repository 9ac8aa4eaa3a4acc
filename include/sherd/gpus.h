#pragma once
// The GPUs of this machine, or the reason why they cannot be used.

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

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
