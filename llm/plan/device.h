#pragma once
// The devices that can be planned for, there or not.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "ops/fused_attention.h"
#include "sherd/backend.h"

namespace llm::plan {

/// An allocator that keeps what is freed for the next step: blocks of at least `large_bytes` in
/// whole pages, apart from smaller ones. Without pages it keeps nothing.
struct Pooling {
  std::int64_t large_bytes = 0;
  std::int64_t page_bytes = 0;
  /// Instead, LibTorch's caching allocator of GPUs (CachingAllocator), for the engine's buffers
  /// too; else they are the system's.
  bool is_caching = false;
};

/// That of the program on CPUs.
inline constexpr Pooling kHostPooling{std::int64_t{4} << 20, std::int64_t{2} << 20};

/// That of the program on GPUs.
inline constexpr Pooling kCachingPooling{.is_caching = true};

/// What oneDNN and MKL keep for a model's products on a CPU (of batches with unequal lengths as
/// many products as the program allows, app/allocator.cpp), and what malloc loses between small
/// blocks: about as much whatever the model (`benchmarks/plan`).
inline constexpr std::int64_t kHostLibrariesBytes = std::int64_t{28} << 20;

/// What a plan has to know of a rank's device.
struct Device {
  std::string name;
  c10::DeviceType type = c10::DeviceType::CPU;
  /// As the vendor's tools print it; 0: what this host has left, shared by its ranks.
  std::int64_t memory_bytes = 0;
  /// Of that, what the driver and its libraries take for a process: assumed, not measured.
  std::int64_t context_bytes = 0;
  /// What `precision.param_dtype = "auto"` becomes; on the CPU this machine's choice.
  c10::ScalarType auto_dtype = c10::ScalarType::Float;
  std::string remark = {};  ///< for people
  /// What may be reached of what the vendor states, so that a step takes longer: of products in 16
  /// bits 81 %, and of the memory's rate 90 %, as others saw of an H100 and an H200 and is assumed
  /// of older ones; of links between ranks of a host 80 %; of the network 90 % of a rank's own
  /// adapter, of 400, 200 and 100 Gbit/s. 0: of the CPU.
  double operations_per_second = 0;
  double bytes_per_second = 0;
  double link_bytes_per_second = 0;
  double network_bytes_per_second = 0;  ///< of a rank
  /// What the vendor states of dense products in 16 bits; 0: of the CPU.
  double peak_operations_per_second = 0;
  Pooling pooling = kHostPooling;
  /// Of a GPU's link to its host, each way at once: 48 GB/s of PCIe 5, as an update of what lies on
  /// the host took it on an H200 (gpu_rates.h); 25 of PCIe 4 and 12.5 of PCIe 3, assumed.
  double pinned_bytes_per_second = 0;
  int compute_capability = 0;  ///< of a GPU: 9 of 9.0

  /// Whether cuDNN's attention is the fastest on it.
  [[nodiscard]] bool prefers_cudnn() const {
    return sherd::ops::prefers_cudnn_attention(compute_capability);
  }
  /// That LibTorch gives cuBLAS for each thread and stream that multiplies. PyTorch:
  /// `getChosenWorkspaceSize`.
  [[nodiscard]] std::int64_t workspace_bytes() const {
    return compute_capability == 0   ? 0
           : compute_capability >= 9 ? std::int64_t{32} << 20
                                     : (std::int64_t{8} << 20) + (std::int64_t{128} << 10);
  }
};
/// Of a step on `device`: the thread that computes forward and that of autograd multiply, each also
/// on the stream that graphs are captured on.
[[nodiscard]] inline std::int64_t workspaces_bytes(const Device& device, bool cuda_graphs) {
  constexpr std::int64_t kThreads = 2;
  return kThreads * (cuda_graphs ? 2 : 1) * device.workspace_bytes();
}

/// What has to be left free beside `planned_bytes` on a GPU, assumed and not measured: 1 GiB for
/// NCCL's buffers where there are several ranks, and 5 % of what is planned for what the caching
/// allocator loses between its blocks. None on the CPU.
[[nodiscard]] std::int64_t reserve_bytes(const Device& device, int ranks,
                                         std::int64_t planned_bytes);

/// A GPU that is here: by its name as one of devices(), with the memory that it has. One that is
/// none of them is planned with the rates of an A100, and says so.
[[nodiscard]] Device device_of_gpu(const sherd::Gpu& gpu);

/// "cpu", "h200-141g", "h100-80g", "a100-80g", "v100-32g".
[[nodiscard]] const std::vector<Device>& devices();
/// Their names.
[[nodiscard]] std::vector<std::string> device_names();
/// Throws sherd::Error(Usage), which lists them, for another name.
[[nodiscard]] const Device& device_of_name(const std::string& name);

}  // namespace llm::plan
