#include "ops/cuda_library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace sherd::ops {
namespace {

constexpr const char* kLibrary = "libsherd_ops_cuda.so";
constexpr const char* kFunction = "sherd_ops_cuda";  // turns the plain back end into the GPU's
using Serve = void(Backend& backend);

// Null where there is none, and dlerror() says why. Never unloaded.
Serve* function_of(const char* library) {
  void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return loaded == nullptr ? nullptr : reinterpret_cast<Serve*>(::dlsym(loaded, kFunction));
}

}  // namespace

Backend backend_of_library(const char* library, const Backend& plain) {
  Backend backend = plain;
  if (Serve* const serve = function_of(library)) {
    serve(backend);
  } else {
    const char* const problem = ::dlerror();
    TORCH_WARN("operators on GPUs compute with LibTorch's own kernels, without Sherd's: ",
               problem == nullptr ? library : problem);
  }
  return backend;
}

Backend backend_of_cuda_library(const Backend& plain) {
  return backend_of_library(kLibrary, plain);
}

}  // namespace sherd::ops
