#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/flash_attention.h"

namespace sherd::ops::cuda {
namespace {

AttentionOutput attention(const AttentionInputs& inputs) {
  return serves_flash_attention(inputs) ? flash_attention(inputs)
                                        : plain_backend().attention(inputs);
}

AttentionGradients attention_backward(const AttentionInputs& inputs, const AttentionOutput& output,
                                      const at::Tensor& grad_mixed_TD) {
  return output.keeps_mixed ? flash_attention_backward(inputs, output, grad_mixed_TD)
                            : plain_backend().attention_backward(inputs, output, grad_mixed_TD);
}

}  // namespace

void add_attention(Backend& backend) {
  backend.attention = &attention;
  backend.attention_backward = &attention_backward;
}

}  // namespace sherd::ops::cuda
