#pragma once
// The devices that can be planned for, there or not.

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "sherd/gpus.h"

namespace llm::plan {

/// An allocator that keeps what is freed for the next step: blocks of at least `large_bytes` in
/// whole pages, apart from smaller ones. Without pages it keeps nothing.
struct Pooling {
  std::int64_t large_bytes = 0;
  std::int64_t page_bytes = 0;
  std::int64_t unit_bytes = 1;     ///< of which a smaller block takes a multiple
  std::int64_t segment_bytes = 1;  ///< of which all smaller ones together do
  bool holds_buffers = false;      ///< the engine's too; else they are the system's
};

/// That of the program on CPUs.
inline constexpr Pooling kHostPooling{std::int64_t{4} << 20, std::int64_t{2} << 20};

/// LibTorch's caching allocator of GPUs: multiples of 512 bytes in segments of 20 MiB, from 10 MiB
/// on segments of their own in multiples of 2 MiB. PyTorch: `CUDACachingAllocator`.
inline constexpr Pooling kCachingPooling{.large_bytes = std::int64_t{10} << 20,
                                         .page_bytes = std::int64_t{2} << 20,
                                         .unit_bytes = 512,
                                         .segment_bytes = std::int64_t{20} << 20,
                                         .holds_buffers = true};

/// What oneDNN and MKL keep for a model's products on a CPU, and malloc loses between small blocks:
/// about as much whatever the model (`benchmarks/plan`).
inline constexpr std::int64_t kHostLibrariesBytes = std::int64_t{20} << 20;

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
  /// Of a GPU's link to its host, each way at once: 50 GB/s of PCIe 5, 25 of PCIe 4, 12.5 of PCIe
  /// 3, assumed.
  double pinned_bytes_per_second = 0;
};

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
