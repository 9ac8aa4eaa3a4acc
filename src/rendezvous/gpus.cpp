#include "rendezvous/gpus.h"

#include <array>
#include <cstdlib>
#include <map>

#include <dlfcn.h>

#include "files/hex.h"
#include "kernels/shard_math.h"
#include "sherd/error.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

// The CUDA version that LibTorch needs of the driver: 13000 is 13.0 (cmake/Cuda.cmake).
#ifdef SHERD_NEEDED_CUDA
constexpr int kNeededCuda = SHERD_NEEDED_CUDA;
#else
constexpr int kNeededCuda = 13000;
#endif

// Of cuda.h, whose numbers do not change.
constexpr int kNoDevice = 100;
constexpr int kOutOfMemory = 2;
constexpr int kUnavailable = 46;
constexpr int kMajor = 75;
constexpr int kMinor = 76;

struct Driver {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  std::string problem = library == nullptr ? ::dlerror() : "";
};

// Open for as long as the process lives: CUDA uses it too.
const Driver& driver() {
  static const auto* const one = new Driver();
  return *one;
}

// Calls a function of the driver. Returns CUDA_ERROR_NOT_FOUND if the driver has no such function.
template <class... Arguments>
int call_driver(const char* name, Arguments... arguments) {
  constexpr int kNotFound = 500;
  const auto function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(driver().library, name));
  return function == nullptr ? kNotFound : function(arguments...);
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
  return call_driver("cuGetErrorString", error, &text) == 0 && text != nullptr
             ? std::string(text) + " (CUDA's error " + std::to_string(error) + ")"
             : "CUDA's error " + std::to_string(error);
}

// Empty if the driver serves.
std::string trouble_with_driver() {
  if (!driver().problem.empty()) {
    return "there is no NVIDIA driver (" + driver().problem +
           "). Install one, or compute on the CPU.";
  }
  int version = 0;
  static_cast<void>(call_driver("cuDriverGetVersion", &version));
  if (version < kNeededCuda) {
    return "the NVIDIA driver is too old: it is made for CUDA " + version_text(version) +
           ", and LibTorch's part for GPUs needs " + version_text(kNeededCuda) +
           ". Install driver " + (kNeededCuda < 13000 ? "525" : "580") +
           " or newer, or compute on the CPU.";
  }
  const int error = call_driver("cuInit", 0U);
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
  static_cast<void>(call_driver("cuDeviceGet", &device, number));
  static_cast<void>(
      call_driver("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device));
  static_cast<void>(call_driver("cuDeviceGetAttribute", &gpu.major, kMajor, device));
  static_cast<void>(call_driver("cuDeviceGetAttribute", &gpu.minor, kMinor, device));
  static_cast<void>(call_driver("cuDeviceTotalMem_v2", &bytes, device));
  if (call_driver("cuDeviceGetUuid_v2", uuid.data(), device) == 0) {
    gpu.uuid = "GPU-" + files::hex_of(uuid.data(), uuid.size());
  }
  gpu.name = name.data();
  gpu.memory_bytes = static_cast<std::int64_t>(bytes);
  return gpu;
}

Gpus ask_driver() {
  Gpus found;
  found.problem = trouble_with_driver();
  int count = 0;
  if (found.problem.empty()) {
    static_cast<void>(call_driver("cuDeviceGetCount", &count));
    if (count == 0) {
      found.problem = "the NVIDIA driver shows no GPU." + visible_text();
    }
  }
  for (int number = 0; number < count; ++number) {
    found.all.push_back(described(number));
  }
  return found;
}

// "GPU 0 (name, UUID)".
std::string text_of(int number, const Gpu& gpu) {
  return "GPU " + std::to_string(number) + " (" + gpu.name + ", " + gpu.uuid + ")";
}

// Makes a GPU's context, as CUDA does at its first use.
void take_gpu(int number, const Gpu& gpu) {
  int device = 0;
  void* context = nullptr;
  static_cast<void>(call_driver("cuDeviceGet", &device, number));
  const int error = call_driver("cuDevicePrimaryCtxRetain", &context, device);
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

constexpr const char* kLibrary = "libsherd_cuda.so";
constexpr const char* kFunction = "sherd_cuda_functions";

// Null if it cannot be loaded, and then `problem` says why.
const CudaFunctions* load_library(std::string& problem) {
  using Functions = const CudaFunctions*();
  // What LibTorch registers on being loaded is for all of the process.
  void* const loaded = ::dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  auto* const functions =
      loaded == nullptr ? nullptr : reinterpret_cast<Functions*>(::dlsym(loaded, kFunction));
  if (functions == nullptr) {
    const char* const why = ::dlerror();
    problem = why == nullptr ? kLibrary : why;
    return nullptr;
  }
  return functions();
}

struct Found {
  Gpus gpus = ask_driver();
  const CudaFunctions* functions = nullptr;  ///< null if the library could not be loaded
};

void load_functions(Found& found) {
  std::string& problem = found.gpus.problem;
  std::string why;
  found.functions = load_library(why);
  if (found.functions == nullptr) {
    problem =
        "this Sherd has no part for GPUs that can be loaded (" + why +
        "). Build it with -DSHERD_CUDA=ON, beside a LibTorch for CUDA (scripts/setup --gpu, or "
        "SHERD_TORCH_DIR), or compute on the CPU.";
    return;
  }
  if (!found.functions->is_found()) {
    problem =
        "LibTorch was asked for GPUs before Sherd loaded its part for them, and has none in this "
        "process. Make the World, or call sherd::gpus(), before torch::manual_seed() and before "
        "any backward.";
  }
  for (int number = 0; number < static_cast<int>(found.gpus.all.size()); ++number) {
    const Gpu& gpu = found.gpus.all[static_cast<size_t>(number)];
    if (!found.functions->serves(gpu.major, gpu.minor)) {
      problem =
          text_of(number, gpu) + " has compute capability " + std::to_string(gpu.major) + "." +
          std::to_string(gpu.minor) + ", which this build does not serve: it is made for " +
          (kNeededCuda < 13000 ? "7.0 and newer. Leave"
                               : "7.5 and newer. A Sherd and a LibTorch for CUDA 12.6 serve 7.0 as "
                                 "well; or leave") +
          " it out with CUDA_VISIBLE_DEVICES.";
    }
  }
}

// Before anything is allocated on a GPU, by whomever.
void initialize(const CudaFunctions& functions, std::string& problem) {
  try {
    functions.initialize();
  } catch (const std::exception& error) {
    problem = "LibTorch cannot use the GPUs that the driver shows: " + message_of(error) +
              ". Does nvidia-smi show them, and is the driver one for CUDA " +
              std::to_string(kNeededCuda / 1000) + "?";
  }
  set_device_kernels(c10::kCUDA, &functions.kernels());
  set_device_functions(c10::kCUDA, functions.on_device);
}

// Asked and loaded once per process.
const Found& found_once() {
  static const Found found = [] {
    Found one;
    if (one.gpus.problem.empty()) {
      load_functions(one);
    }
    if (one.gpus.problem.empty()) {
      initialize(*one.functions, one.gpus.problem);
    }
    return one;
  }();
  return found;
}

}  // namespace

const CudaFunctions& cuda_functions() {
  const Found& found = found_once();
  if (!found.gpus.problem.empty()) {
    throw Error(ExitCode::Unavailable, "no GPU can be used: " + found.gpus.problem);
  }
  return *found.functions;
}

c10::Device device_of_rank(c10::DeviceType type, int local_rank) {
  if (type == c10::DeviceType::CPU) {
    return c10::Device(c10::kCPU);
  }
  if (type != c10::DeviceType::CUDA) {
    throw Error(ExitCode::Unavailable, "no device '" +
                                           c10::DeviceTypeName(type, /*lower_case=*/true) +
                                           "' can be used: Sherd computes on CPUs and on GPUs of "
                                           "NVIDIA, c10::kCUDA.");
  }
  const CudaFunctions& functions = cuda_functions();
  const std::vector<Gpu>& all = gpus().all;
  const int number = local_rank % static_cast<int>(all.size());
  take_gpu(number, all[static_cast<size_t>(number)]);
  // Else whatever goes back to "the device before" makes a context on GPU 0, in each process.
  functions.initialize_device(number);
  return {type, static_cast<c10::DeviceIndex>(number)};
}

std::optional<SharedGpu> shared_gpu(const std::vector<std::string>& gpus, const RankGroup& group) {
  std::map<std::string, int> owners;
  for (int member = 0; member < group.size; ++member) {
    const int rank = group.rank_at(member);
    const std::string& gpu = gpus[static_cast<size_t>(rank)];
    const auto [owner, is_new] = owners.emplace(gpu, rank);
    if (!is_new) {
      return SharedGpu{owner->second, rank, gpu};
    }
  }
  return std::nullopt;
}

}  // namespace sherd::detail

namespace sherd {

const Gpus& gpus() {
  return detail::found_once().gpus;
}

void set_sync_debug_mode(SyncDebugMode mode) {
  detail::cuda_functions().set_sync_debug_mode(mode);
}

}  // namespace sherd
