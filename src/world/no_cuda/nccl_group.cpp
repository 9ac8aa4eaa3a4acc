#include "world/nccl_group.h"

#include "sherd/error.h"

namespace sherd::detail {

bool built_with_cuda() {
  return false;
}

int cuda_devices() {
  return 0;
}

std::string gpu_uuid(c10::Device /*device*/) {
  return "";
}

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                  int /*rank*/, int /*size*/,
                                                  std::chrono::milliseconds /*timeout*/) {
  throw Error(ExitCode::Unavailable,
              "this build of Sherd has no CUDA: configure it with -DSHERD_CUDA=ON, or leave "
              "WorldOptions::device at the CPU.");
}

}  // namespace sherd::detail
