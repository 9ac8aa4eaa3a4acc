#pragma once
// The engine's kernels on the fake device.

#include "kernels/kernels.h"

namespace sherd::fake {

/// The processor's loops, as operations of the current stream.
[[nodiscard]] const kernels::DeviceKernels* fake_kernels();

}  // namespace sherd::fake
