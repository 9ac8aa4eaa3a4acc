#pragma once
// The back end of ops/cuda whose functions are tested, and where: the same tests run over kernels
// that are played on the processor, and on a GPU.

#include <c10/core/Device.h>

#include "ops/plain/plain_backend.h"

namespace sherd::ops::cuda::test {

[[nodiscard]] const Backend& tested_backend();
[[nodiscard]] c10::Device tested_device();

/// What they are compared with.
[[nodiscard]] inline const Backend& reference() {
  static const Backend plain = plain::plain_backend();
  return plain;
}

}  // namespace sherd::ops::cuda::test
