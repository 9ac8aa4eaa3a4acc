#pragma once
// The devices that can be planned for, there or not.

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace llm::plan {

/// An allocator that keeps what is freed for the next step: blocks of at least `large_bytes` in
/// whole pages, apart from smaller ones. Without pages it keeps nothing.
struct Pooling {
  std::int64_t large_bytes = 0;
  std::int64_t page_bytes = 0;
};

/// That of the program on CPUs.
inline constexpr Pooling kHostPooling{std::int64_t{4} << 20, std::int64_t{2} << 20};

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
  /// Assumed: half of what the vendor states of products in 16 bits, three quarters of its memory's
  /// rate, and of the links between ranks of a host; of a host's network 400 Gbit/s a rank. 0: of
  /// the CPU.
  double operations_per_second = 0;
  double bytes_per_second = 0;
  double link_bytes_per_second = 0;
  double network_bytes_per_second = 0;
};

/// "cpu", "h100-80g", "a100-80g", "v100-32g".
[[nodiscard]] const std::vector<Device>& devices();
/// Their names.
[[nodiscard]] std::vector<std::string> device_names();
/// Throws sherd::Error(Usage), which lists them, for another name.
[[nodiscard]] const Device& device_of_name(const std::string& name);

}  // namespace llm::plan
