#pragma once
// What a launch that the GPU refused becomes: an Error as every layer throws it.

#include <string>

#include "sherd/error.h"

namespace sherd::gpu {

/// The Error of a launch of `kernel`. Kernels run after the host has gone on, so that the runtime
/// may report the fault of an earlier one here: the message does not blame `kernel`.
/// `reason`: the CUDA runtime's text.
[[nodiscard]] inline Error launch_failure(ExitCode code, const char* kernel, const char* reason) {
  return {code, std::string("CUDA reported \"") + reason + "\" when the kernel " + kernel +
                    " was launched. An earlier kernel may have caused it: run again with "
                    "CUDA_LAUNCH_BLOCKING=1 to find the kernel at fault."};
}

}  // namespace sherd::gpu
