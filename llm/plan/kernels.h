#pragma once
// The kernels that a GPU runs for an operator, and how much each computes and moves.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

namespace llm::plan {

/// Kernels that run at different speeds.
enum class Kernel : std::uint8_t {
  Copy,  ///< and LibTorch's other operators that read and write each array once
  RmsNorm,
  RmsNormBackward,
  LayerNorm,
  LayerNormBackward,
  SwiGlu,
  SwiGluBackward,
  BiasGelu,
  BiasGeluBackward,
  Rotary,
  CrossEntropy,
  CrossEntropyBackward,
  ColumnSums,
  EmbeddingGradient,
  AdamW,
  Product,               ///< rows × weightᵀ
  ProductTowardsInput,   ///< gradient × weight
  ProductTowardsWeight,  ///< gradientᵀ × rows
  Logits,                ///< rows × the head's weightᵀ
  Attention,
  AttentionBackward,
};

/// A kernel and what tables and files call it.
struct KernelName {
  Kernel kernel;
  std::string_view name;
};
/// In the order of the enumeration, as tables and files have them.
inline constexpr std::array<KernelName, 21> kKernelNames = {
    {{Kernel::Copy, "copy"},
     {Kernel::RmsNorm, "RMSNorm"},
     {Kernel::RmsNormBackward, "RMSNorm, backward"},
     {Kernel::LayerNorm, "LayerNorm"},
     {Kernel::LayerNormBackward, "LayerNorm, backward"},
     {Kernel::SwiGlu, "SwiGLU"},
     {Kernel::SwiGluBackward, "SwiGLU, backward"},
     {Kernel::BiasGelu, "bias and GELU"},
     {Kernel::BiasGeluBackward, "bias and GELU, backward"},
     {Kernel::Rotary, "rotary"},
     {Kernel::CrossEntropy, "cross-entropy"},
     {Kernel::CrossEntropyBackward, "cross-entropy, backward"},
     {Kernel::ColumnSums, "sums over rows"},
     {Kernel::EmbeddingGradient, "gradient of an embedding"},
     {Kernel::AdamW, "AdamW"},
     {Kernel::Product, "product"},
     {Kernel::ProductTowardsInput, "product, towards the input"},
     {Kernel::ProductTowardsWeight, "product, towards the weight"},
     {Kernel::Logits, "logits"},
     {Kernel::Attention, "attention"},
     {Kernel::AttentionBackward, "attention, backward"}}};

/// One launch of a kernel, or `times` that are alike.
struct KernelCall {
  Kernel kernel = Kernel::Copy;
  double operations = 0;  ///< of products and attention
  double bytes = 0;       ///< that have to be read and written
  double times = 1;
};

/// The window of ops::attention(), in tokens, by its arguments; 0: none.
[[nodiscard]] double window_of(c10::ArrayRef<const c10::IValue> arguments);
/// Operations of ops::attention()'s forward, by its arguments: scores and what they mix, of the
/// pairs that causality and a window leave. query [T, heads, head size].
[[nodiscard]] double attention_operations(c10::ArrayRef<const c10::IValue> arguments);
/// Of an operator, by its name without "sherd::" or "aten::" and the arguments that profilers see.
/// None where it only names memory anew. What ALiBi adds to attention is not in it.
[[nodiscard]] std::vector<KernelCall> kernels_of(std::string_view name,
                                                 c10::ArrayRef<const c10::IValue> arguments);

}  // namespace llm::plan
