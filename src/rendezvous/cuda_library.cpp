#include "rendezvous/cuda_library.h"

#include <dlfcn.h>

#include "kernels/shard_math.h"
#include "rendezvous/nvidia_driver.h"
#include "sherd/error.h"
#include "storage/own_work.h"

namespace sherd::detail {

namespace {

constexpr const char* kLibrary = "libsherd_cuda.so";
constexpr const char* kFunction = "sherd_cuda_functions";

// Before anything is allocated on a GPU, by whomever.
void initialize(const CudaFunctions& functions, Gpus& found) {
  try {
    functions.initialize();
  } catch (const std::exception& error) {
    found.problem = "LibTorch cannot use the GPUs that the driver shows: " + message_of(error) +
                    ". Does nvidia-smi show them, and is the driver one for CUDA " +
                    std::to_string(kNeededCuda / 1000) + "?";
  }
}

}  // namespace

const CudaFunctions* load_cuda_functions(const char* library, std::string& problem) {
  using Functions = const CudaFunctions*();
  // What LibTorch registers on being loaded is for all of the process.
  void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  auto* const functions =
      loaded == nullptr ? nullptr : reinterpret_cast<Functions*>(::dlsym(loaded, kFunction));
  if (functions == nullptr) {
    const char* const why = ::dlerror();
    problem = why == nullptr ? library : why;
    return nullptr;
  }
  return functions();
}

Gpus with_library(Gpus found, const char* library) {
  if (!found.problem.empty()) {
    return found;
  }
  std::string why;
  const CudaFunctions* const functions = load_cuda_functions(library, why);
  if (functions == nullptr) {
    found.problem =
        "this Sherd has no part for GPUs that can be loaded (" + why +
        "). Build it with -DSHERD_CUDA=ON, beside a LibTorch for CUDA (scripts/setup --gpu, or "
        "SHERD_TORCH_DIR), or compute on the CPU.";
    return found;
  }
  if (!functions->is_found()) {
    found.problem =
        "LibTorch was asked for GPUs before Sherd loaded its part for them, and has none in this "
        "process. Make the World, or call sherd::gpus(), before torch::manual_seed() and before "
        "any backward.";
  }
  for (int number = 0; number < static_cast<int>(found.all.size()); ++number) {
    const Gpu& gpu = found.all[static_cast<size_t>(number)];
    if (!functions->serves(gpu.major, gpu.minor)) {
      found.problem =
          text_of(number, gpu) + " has compute capability " + std::to_string(gpu.major) + "." +
          std::to_string(gpu.minor) + ", which this build does not serve: it is made for " +
          (kNeededCuda < 13000 ? "7.0 and newer. Leave"
                               : "7.5 and newer. A Sherd and a LibTorch for CUDA 12.6 serve 7.0 as "
                                 "well; or leave") +
          " it out with CUDA_VISIBLE_DEVICES.";
    }
  }
  return found;
}

const CudaFunctions& cuda_functions() {
  std::string problem = gpus().problem;
  const CudaFunctions* const functions =
      problem.empty() ? load_cuda_functions(kLibrary, problem) : nullptr;
  if (functions == nullptr) {
    throw Error(ExitCode::Unavailable, "no GPU can be used: " + problem);
  }
  return *functions;
}

}  // namespace sherd::detail

namespace sherd {

const Gpus& gpus() {
  static const Gpus found = [] {
    Gpus shown = detail::with_library(detail::ask_nvidia_driver(), detail::kLibrary);
    if (shown.problem.empty()) {
      std::string ignored;
      const auto* const loaded = detail::load_cuda_functions(detail::kLibrary, ignored);
      detail::initialize(*loaded, shown);
      detail::set_device_kernels(c10::kCUDA, &loaded->kernels());
      detail::set_host_pinning(c10::kCUDA, loaded->pinning);
      detail::set_graph_functions(c10::kCUDA, loaded->graphs);
    }
    return shown;
  }();
  return found;
}

void set_sync_debug_mode(SyncDebugMode mode) {
  detail::cuda_functions().set_sync_debug_mode(mode);
}

}  // namespace sherd
