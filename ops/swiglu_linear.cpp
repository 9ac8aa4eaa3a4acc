#include "ops/swiglu_linear.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/dispatch.h"
#include "ops/gradient.h"
#include "ops/matrix.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows do not matter to an elementwise function, threads do.
constexpr int64_t kRow = 4'096;

template <class F>
void for_parts(int64_t numel, const F& f) {
  cpu::for_rows((numel + kRow - 1) / kRow, kRow,
                [&](int64_t begin, int64_t end) { f(begin * kRow, std::min(end * kRow, numel)); });
}

// silu(gate) × up and its gradients: by Sherd's own loops where they serve the tensors, else by
// LibTorch.
class SwiGluPasses {
 public:
  SwiGluPasses(const at::Tensor& gate, const at::Tensor& up);
  // With the choice of an earlier one.
  SwiGluPasses(const at::Tensor& gate, const at::Tensor& up, bool fast);

  [[nodiscard]] const at::Tensor& gate() const { return gate_; }
  [[nodiscard]] const at::Tensor& up() const { return up_; }
  [[nodiscard]] bool fast() const { return fast_; }

  [[nodiscard]] at::Tensor forward() const;
  struct Gradients {
    at::Tensor gate;
    at::Tensor up;
  };
  [[nodiscard]] Gradients backward(const at::Tensor& grad_output) const;

 private:
  at::Tensor gate_;
  at::Tensor up_;
  bool fast_;
};

SwiGluPasses::SwiGluPasses(const at::Tensor& gate, const at::Tensor& up)
    : SwiGluPasses(gate, up, cpu::serves(gate)) {}

SwiGluPasses::SwiGluPasses(const at::Tensor& gate, const at::Tensor& up, bool fast)
    : gate_(gate.contiguous()), up_(up.contiguous()), fast_(fast) {}

at::Tensor SwiGluPasses::forward() const {
  if (!fast_) {
    return at::silu(gate_).mul_(up_);
  }
  at::Tensor output = at::empty(gate_.sizes(), gate_.options());
  cpu::with_dtype(gate_, [&](auto type) {
    using T = decltype(type);
    for_parts(gate_.numel(), [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().swiglu(cpu::data<T>(gate_) + begin, cpu::data<T>(up_) + begin,
                               cpu::mutable_data<T>(output) + begin, end - begin);
    });
  });
  return output;
}

SwiGluPasses::Gradients SwiGluPasses::backward(const at::Tensor& grad_output) const {
  if (!fast_) {
    return {at::silu_backward(grad_output * up_, gate_), at::silu(gate_).mul_(grad_output)};
  }
  const at::Tensor grad = grad_output.contiguous();
  Gradients result{at::empty(gate_.sizes(), gate_.options()),
                   at::empty(gate_.sizes(), gate_.options())};
  cpu::with_dtype(gate_, [&](auto type) {
    using T = decltype(type);
    for_parts(gate_.numel(), [&](int64_t begin, int64_t end) {
      cpu::kernels<T>().swiglu_backward(cpu::data<T>(grad) + begin, cpu::data<T>(gate_) + begin,
                                        cpu::data<T>(up_) + begin,
                                        cpu::mutable_data<T>(result.gate) + begin,
                                        cpu::mutable_data<T>(result.up) + begin, end - begin);
    });
  });
  return result;
}

struct SwiGluLinear : torch::autograd::Function<SwiGluLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up,
                            const at::Tensor& weight) {
    RECORD_FUNCTION("sherd::swiglu_linear", {});
    const SwiGluPasses passes(gate, up);
    context->save_for_backward({passes.gate(), passes.up(), weight});
    context->saved_data["fast"] = passes.fast();
    return with_leading_sizes(at::mm(as_matrix(passes.forward()), weight.t()), gate.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::swiglu_linear_backward", {});
    once_differentiable("sherd::swiglu_linear");
    const auto saved = context->get_saved_variables();
    const at::Tensor& weight = saved[2];
    const SwiGluPasses passes(saved[0], saved[1], context->saved_data["fast"].toBool());
    const at::Tensor grad_output = as_matrix(gradients[0]);
    at::Tensor grad_weight;
    if (context->needs_input_grad(2)) {
      const at::Tensor product = as_matrix(passes.forward());
      grad_weight = deliver_gradient(
          weight, [&](at::Tensor& out) { at::mm_out(out, grad_output.t(), product); });
    }
    const auto grads = passes.backward(at::mm(grad_output, weight).view(saved[0].sizes()));
    return {grads.gate, grads.up, grad_weight};
  }
};

}  // namespace

at::Tensor swiglu_linear(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight) {
  return SwiGluLinear::apply(gate, up, weight);
}

}  // namespace sherd::ops
