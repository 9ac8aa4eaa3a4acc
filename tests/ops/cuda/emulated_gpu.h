#pragma once
// What the played back end is told of its GPU, and how what stands for cuDNN behaves.

#include <array>
#include <cstdint>
#include <string>

namespace sherd::ops::cuda::test {

struct EmulatedGpu {
  int compute_capability = 90;
  bool is_capturing = false;
  std::string cudnn_forward_problem = {};   ///< what its forward throws; empty: nothing
  std::string cudnn_backward_problem = {};  ///< the same of its backward
  bool cudnn_ends_memory = false;           ///< throws that memory has ended
  /// What its output and its gradients of queries, keys and values are multiplied by.
  std::array<double, 4> cudnn_factors = {1, 1, 1, 1};
  int64_t cudnn_gradient_tokens = -1;  ///< of a document, behind which gradients are 0; −1: all
  int cudnn_calls = 0;                 ///< of both
  bool flash_ignores_windows = false;
};

/// That of this process; a test puts back what it changes.
[[nodiscard]] EmulatedGpu& emulated_gpu();

}  // namespace sherd::ops::cuda::test
