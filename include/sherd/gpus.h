#pragma once
// The GPUs of this machine, and why they cannot be used where they cannot.

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// A GPU as its driver describes it.
struct Gpu {
  std::string name;               ///< "NVIDIA H100 80GB HBM3"
  int major = 0;                  ///< of its compute capability: 9 of 9.0
  int minor = 0;                  ///< likewise
  std::int64_t memory_bytes = 0;  ///< all of it
  std::string uuid;               ///< "GPU-…", which no other one has, on any host
  /// Whether products in bf16 are its own; those without are refused bf16.
  [[nodiscard]] bool has_bfloat16() const { return major >= 8; }
};

/// What can be computed on, beside the CPU.
struct Gpus {
  std::vector<Gpu> all;  ///< by number, as CUDA counts; those that CUDA_VISIBLE_DEVICES shows
  /// Why none of them can be used here, in a sentence that says what to do; empty: they can.
  std::string problem;
};

/// Asks the driver, once a process, and loads libsherd_cuda.so with LibTorch's part for GPUs where
/// there is a GPU. To be called, or a World made, before `torch::manual_seed()` and any backward:
/// LibTorch looks for GPUs once. A process that has asked must not be forked. Throws nothing: what
/// is wrong is in Gpus::problem. Any thread; not collective. PyTorch: `torch.cuda.is_available()`,
/// `get_device_properties()`.
[[nodiscard]] const Gpus& gpus();

/// Whether a thread of this process is in NCCL, as one stays behind where ranks could not be
/// connected (Error(Unavailable)): nothing ends it, and what goes with the process is not to go
/// beside it. A program then ends by `_exit()`, once it has written what it has to write. Any
/// thread; not collective.
[[nodiscard]] bool thread_connects_in_nccl();

/// What happens where an operator of LibTorch makes the host wait for a GPU: nothing, a warning
/// on stderr, or a c10::Error.
enum class SyncDebugMode : std::uint8_t { Default, Warn, Error };

/// For all threads from now on, to find what stops a host that is to be ahead of its GPU: numbers
/// that are read (`item()`), copies from or to memory that is not pinned, shapes that values
/// decide. Waits for events are not seen. Not collective. Throws Error(Unavailable) where there is
/// no GPU that can be used. PyTorch: `torch.cuda.set_sync_debug_mode`.
void set_sync_debug_mode(SyncDebugMode mode);

}  // namespace sherd
