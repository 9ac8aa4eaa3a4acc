#include "llm/plan/device.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "sherd/error.h"

namespace llm::plan {

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kContext = 1024 * kMiB;
constexpr const char* kNoRun = "not validated on this device: estimates only";

}  // namespace

std::int64_t reserve_bytes(const Device& device, int ranks, std::int64_t planned_bytes) {
  constexpr std::int64_t kNccl = 1024 * kMiB, kShareOfFragments = 20;
  return device.type == c10::DeviceType::CPU
             ? 0
             : planned_bytes / kShareOfFragments + (ranks > 1 ? kNccl : 0);
}

const std::vector<Device>& devices() {
  constexpr auto kGpu = c10::DeviceType::CUDA;
  static const std::vector<Device> known = {
      {"cpu"},
      {"h200-141g", kGpu, 143'771 * kMiB, kContext, c10::ScalarType::BFloat16, "", 798e12, 4.3e12,
       360e9, 45e9, 989e12, kCachingPooling, 48e9, 9},
      {"h100-80g", kGpu, 81'559 * kMiB, kContext, c10::ScalarType::BFloat16, kNoRun, 798e12, 3.0e12,
       360e9, 45e9, 989e12, kCachingPooling, 48e9, 9},
      {"a100-80g", kGpu, 81'920 * kMiB, kContext, c10::ScalarType::BFloat16, kNoRun, 252e12, 1.8e12,
       240e9, 22.5e9, 312e12, kCachingPooling, 25e9, 8},
      {"v100-32g", kGpu, 32'510 * kMiB, kContext, c10::ScalarType::Half,
       "it needs a build of Sherd with CUDA 12.6, and has no bfloat16", 101e12, 0.8e12, 120e9,
       11.25e9, 125e12, kCachingPooling, 12.5e9, 7}};
  return known;
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const Device& device : devices()) {
    names.push_back(device.name);
  }
  return names;
}

const Device& device_of_name(const std::string& name) {
  const auto found = std::find_if(devices().begin(), devices().end(),
                                  [&](const Device& device) { return device.name == name; });
  if (found == devices().end()) {
    throw sherd::Error(sherd::ExitCode::Usage,
                       fmt::format("unknown device '{}': give one of {}; for another GPU give a "
                                   "similar one, and its memory with --memory",
                                   name, fmt::join(device_names(), ", ")));
  }
  return *found;
}

Device device_of_gpu(const sherd::Gpu& gpu) {
  // "NVIDIA H100 80GB HBM3": what stands before the dash of the names above.
  for (const Device& known : devices()) {
    std::string kind = known.name.substr(0, known.name.find('-'));
    std::transform(kind.begin(), kind.end(), kind.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    if (known.type != c10::DeviceType::CPU && gpu.name.find(kind) != std::string::npos) {
      Device found = known;
      found.memory_bytes = gpu.memory_bytes;
      return found;
    }
  }
  Device other = device_of_name("a100-80g");
  other.name = gpu.name;
  other.memory_bytes = gpu.memory_bytes;
  other.auto_dtype = gpu.has_bfloat16() ? c10::ScalarType::BFloat16 : c10::ScalarType::Half;
  other.peak_operations_per_second = 0;
  other.compute_capability = gpu.major;
  other.remark =
      "the rates of this GPU are unknown: times are those of an A100; `sherd bench --calibrate` on "
      "it measures them";
  return other;
}

}  // namespace llm::plan
