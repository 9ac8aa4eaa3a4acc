#pragma once
// Which operators a thread calls, and how much each computes: on the meta device as on others.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include "llm/plan/kernels.h"
#include "ops/attention_kernel.h"

namespace llm::plan {

/// A call of an operator, or of one of the engine's ranges.
struct OperatorCall {
  std::string kind;   ///< "linear 16 bits": the name that profilers see, and of what numbers
  double amount = 0;  ///< operations of what multiplies matrices, bytes of the arguments of others
  double seconds = 0;
  double moved_bytes = 0;      ///< see moved_bytes()
  double document_tokens = 0;  ///< of attention: of the document that a pair is of, on average
  sherd::ops::AttentionKernel attention = sherd::ops::AttentionKernel::Auto;  ///< that computes it
  bool has_window = false;                                                    ///< of attention
  std::vector<KernelCall> kernels = {};  ///< of a GPU, where it is planned on meta
};

/// Whether an operator of this name (without "sherd::") multiplies matrices.
[[nodiscard]] bool multiplies(std::string_view name);
/// Operations of the products in one call of an operator that multiplies(): two per multiplication
/// and addition; of attention what causality and a window leave. `arguments`: those that profilers
/// see.
[[nodiscard]] double product_operations(std::string_view name,
                                        c10::ArrayRef<const c10::IValue> arguments);

/// What follows the name of a kind: " float32" or " 16 bits".
[[nodiscard]] std::string bits_of(c10::ScalarType dtype);

/// While it lives, tells of each outermost operator of this thread as it ends: Sherd's, LibTorch's,
/// and the ranges of the engine and the optimizer but for forward and backward, whose amount is
/// 0. One at a time a thread. PyTorch: `torch.utils.flop_counter.FlopCounterMode`.
class OperatorWatch {
 public:
  explicit OperatorWatch(std::function<void(const OperatorCall&)> on_end);
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  struct State;

 private:
  std::unique_ptr<State> state_;
  std::uint64_t observer_;
};

}  // namespace llm::plan
