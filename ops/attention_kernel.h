#pragma once
// The kernels that compute attention on GPUs, and which of them were chosen.

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace sherd::ops {

/// Which kernel computes ops::attention() on a GPU. Other devices ignore it. A kernel that does not
/// serve a shape is followed by the next in this order.
/// PyTorch: `torch.nn.attention.sdpa_kernel`.
enum class AttentionKernel : std::uint8_t {
  Auto,   ///< the first of the others that serves the shape and is expected to be the fastest
  Cudnn,  ///< cuDNN's fused attention, through LibTorch
  Flash,  ///< LibTorch's flash attention
  Plain,  ///< blocks of matrix products with a softmax between them
};

/// The kernel that computes attention of one kind of shape.
struct AttentionChoice {
  AttentionKernel kernel = AttentionKernel::Plain;
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t head_size = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool has_alibi = false;
  bool has_equal_lengths = false;  ///< whether all documents of a batch have one length
  std::int64_t window = 0;         ///< that is shorter than the longest document; 0: none
  bool has_soft_cap = false;       ///< of scores
  /// Why the kernels before it in the order do not compute it; empty if there is none.
  std::string why;
};

/// As device.attention names it: "cudnn", "flash", "plain", "auto".
[[nodiscard]] const char* name_of(AttentionKernel kernel);

/// For people: "cuDNN (32 heads, 8 key heads of 128, bfloat16, documents of one length)", with the
/// reason behind it where there is one.
[[nodiscard]] std::string text_of(const AttentionChoice& choice);

/// The choices of this process so far for attention on `device`, in the order in which shapes came;
/// none on a CPU. A choice that a failure changed holds the kernel that computes now. Any thread.
[[nodiscard]] std::vector<AttentionChoice> attention_choices(c10::Device device);

}  // namespace sherd::ops
