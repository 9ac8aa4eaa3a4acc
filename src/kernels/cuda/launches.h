#pragma once
// The sharding library's kernels for GPUs, as the library calls them: plain C++.

#include "kernels/device_kernels.h"

namespace sherd::cuda {

/// Launches on the GPU that is the current one of the thread.
[[nodiscard]] const kernels::DeviceKernels& device_kernels();

}  // namespace sherd::cuda
