#include "rendezvous/nvidia_driver.h"

#include <array>
#include <cstdlib>

#include <dlfcn.h>

#include "files/hex.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

// Of cuda.h, whose numbers do not change.
constexpr int kNoDevice = 100;
constexpr int kOutOfMemory = 2;
constexpr int kUnavailable = 46;
constexpr int kMajor = 75;
constexpr int kMinor = 76;

// The driver's functions, by name.
class Driver {
 public:
  Driver() : library_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
      problem_ = ::dlerror();
    }
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }
  // CUDA_ERROR_NOT_FOUND where the driver has no such function.
  template <class... Arguments>
  [[nodiscard]] int call(const char* name, Arguments... arguments) const {
    constexpr int kNotFound = 500;
    const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(library_, name));
    return function == nullptr ? kNotFound : function(arguments...);
  }

 private:
  void* library_;  // for as long as the process lives: CUDA uses it too
  std::string problem_;
};

const Driver& driver() {
  static const auto* const one = new Driver();
  return *one;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string visible_text() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "" : std::string(" CUDA_VISIBLE_DEVICES is '") + visible + "'.";
}

std::string error_text(int error) {
  const char* text = nullptr;
  return driver().call("cuGetErrorString", error, &text) == 0 && text != nullptr
             ? std::string(text) + " (CUDA's error " + std::to_string(error) + ")"
             : "CUDA's error " + std::to_string(error);
}

// Empty where it serves.
std::string trouble_with_driver() {
  if (!driver().problem().empty()) {
    return "there is no NVIDIA driver (" + driver().problem() +
           "). Install one, or compute on the CPU.";
  }
  int version = 0;
  static_cast<void>(driver().call("cuDriverGetVersion", &version));
  if (version < kNeededCuda) {
    return "the NVIDIA driver is too old: it is made for CUDA " + version_text(version) +
           ", and LibTorch's part for GPUs needs " + version_text(kNeededCuda) +
           ". Install driver " + (kNeededCuda < 13000 ? "525" : "580") +
           " or newer, or compute on the CPU.";
  }
  const int error = driver().call("cuInit", 0U);
  if (error == kNoDevice) {
    return "the NVIDIA driver shows no GPU." + visible_text();
  }
  return error == 0 ? "" : "the NVIDIA driver does not start: " + error_text(error) + ".";
}

Gpu described(int number) {
  int device = 0;
  std::array<char, 256> name{};
  std::array<unsigned char, 16> uuid{};
  std::size_t bytes = 0;
  Gpu gpu;
  static_cast<void>(driver().call("cuDeviceGet", &device, number));
  static_cast<void>(
      driver().call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device));
  static_cast<void>(driver().call("cuDeviceGetAttribute", &gpu.major, kMajor, device));
  static_cast<void>(driver().call("cuDeviceGetAttribute", &gpu.minor, kMinor, device));
  static_cast<void>(driver().call("cuDeviceTotalMem_v2", &bytes, device));
  if (driver().call("cuDeviceGetUuid_v2", uuid.data(), device) == 0) {
    gpu.uuid = "GPU-" + files::hex_of(uuid.data(), uuid.size());
  }
  gpu.name = name.data();
  gpu.memory_bytes = static_cast<std::int64_t>(bytes);
  return gpu;
}

}  // namespace

Gpus ask_nvidia_driver() {
  Gpus found;
  found.problem = trouble_with_driver();
  int count = 0;
  if (found.problem.empty()) {
    static_cast<void>(driver().call("cuDeviceGetCount", &count));
    if (count == 0) {
      found.problem = "the NVIDIA driver shows no GPU." + visible_text();
    }
  }
  for (int number = 0; number < count; ++number) {
    found.all.push_back(described(number));
  }
  return found;
}

std::string text_of(int number, const Gpu& gpu) {
  return "GPU " + std::to_string(number) + " (" + gpu.name + ", " + gpu.uuid + ")";
}

void take_gpu(int number, const Gpu& gpu) {
  int device = 0;
  void* context = nullptr;
  static_cast<void>(driver().call("cuDeviceGet", &device, number));
  const int error = driver().call("cuDevicePrimaryCtxRetain", &context, device);
  if (error == kUnavailable) {
    throw Error(ExitCode::Unavailable,
                text_of(number, gpu) +
                    " is in use: it is set to serve one process at a time, and another one has it. "
                    "nvidia-smi shows which; choose another GPU with CUDA_VISIBLE_DEVICES.");
  }
  if (error == kOutOfMemory) {
    throw Error(ExitCode::OutOfMemory,
                text_of(number, gpu) +
                    " has no memory left to begin with: other processes hold it. nvidia-smi shows "
                    "them; end them, or choose another GPU with CUDA_VISIBLE_DEVICES.");
  }
  if (error != 0) {
    throw Error(ExitCode::Unavailable,
                text_of(number, gpu) + " cannot be used: " + error_text(error) + ".");
  }
}

}  // namespace sherd::detail
