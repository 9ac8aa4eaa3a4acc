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
/// there is a GPU. A process that has asked must not be forked. Throws nothing: what is wrong is in
/// Gpus::problem. Any thread; not collective. PyTorch: `torch.cuda.is_available()`,
/// `get_device_properties()`.
[[nodiscard]] const Gpus& gpus();

}  // namespace sherd
