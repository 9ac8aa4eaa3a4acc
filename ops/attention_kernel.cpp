#include "ops/attention_kernel.h"

#include <array>

#include <ATen/ops/empty.h>

#include "ops/backend.h"

namespace sherd::ops {
namespace {

struct KernelWords {
  const char* name;
  const char* text;
};
// By AttentionKernel.
constexpr std::array<KernelWords, 4> kKernelWords = {{{"auto", "the fastest kernel"},
                                                      {"cudnn", "cuDNN"},
                                                      {"flash", "flash attention"},
                                                      {"plain", "matrix products"}}};

std::string dtype_text(c10::ScalarType dtype) {
  return dtype == c10::kBFloat16 ? "bfloat16"
         : dtype == c10::kHalf   ? "float16"
         : dtype == c10::kDouble ? "float64"
                                 : "float32";
}

std::string heads_text(const AttentionChoice& choice) {
  const std::string heads = std::to_string(choice.heads) + " heads";
  return choice.key_heads == choice.heads
             ? heads
             : heads + ", " + std::to_string(choice.key_heads) + " key heads";
}

}  // namespace

const char* name_of(AttentionKernel kernel) {
  return kKernelWords[static_cast<std::size_t>(kernel)].name;
}

std::string text_of(const AttentionChoice& choice) {
  return kKernelWords[static_cast<std::size_t>(choice.kernel)].text + (" (" + heads_text(choice)) +
         " of " + std::to_string(choice.head_size) + ", " + dtype_text(choice.dtype) +
         (choice.has_alibi ? ", ALiBi" : "") +
         (choice.window == 0 ? "" : ", a window of " + std::to_string(choice.window)) +
         (choice.has_soft_cap ? ", a soft cap of scores" : "") +
         (choice.has_equal_lengths ? ", documents of one length)"
                                   : ", documents of different lengths)") +
         (choice.why.empty() ? "" : "; " + choice.why);
}

std::vector<AttentionChoice> attention_choices(c10::Device device) {
  return backend_of(at::empty({0}, device)).attention_choices();
}

}  // namespace sherd::ops
