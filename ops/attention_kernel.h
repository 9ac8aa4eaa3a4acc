#pragma once
// The kernels that compute attention on GPUs, and which of them were chosen.

#include <cstdint>

namespace sherd::ops {

/// Which kernel computes ops::attention() on a GPU. Other devices ignore it.
/// PyTorch: `torch.nn.attention.sdpa_kernel`.
enum class AttentionKernel : std::uint8_t {
  Auto,   ///< the first of the others that is known to be the fastest and serves the shape
  Cudnn,  ///< cuDNN's fused attention, through LibTorch
  Flash,  ///< LibTorch's flash attention
  Plain,  ///< blocks of matrix products with a softmax between them
};

}  // namespace sherd::ops
