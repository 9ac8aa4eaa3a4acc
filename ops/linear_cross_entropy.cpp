#include "ops/linear_cross_entropy.h"

#include <algorithm>

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/gradient.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [n, V] in fp32
at::Tensor log_probabilities(const at::Tensor& hidden, const at::Tensor& weight) {
  const at::Tensor logits = at::mm(hidden, weight.t());
  return at::_log_softmax(logits.to(statistics_dtype(logits.scalar_type())), -1,
                          /*half_to_float=*/false);
}

// (softmax − one-hot target) × scale, rounded to `dtype`.
at::Tensor grad_logits(const at::Tensor& log_probabilities, const at::Tensor& targets,
                       const at::Tensor& scale, c10::ScalarType dtype) {
  const at::Tensor columns = targets.unsqueeze(1);
  at::Tensor gradient = log_probabilities.exp();
  gradient.scatter_add_(1, columns, at::full_like(columns, -1, gradient.options()));
  return gradient.mul_(scale).to(dtype);
}

// Calls visit(begin, end) for each chunk of rows; once, with nothing, where there are none.
template <class Visit>
void for_each_chunk(int64_t rows, int64_t chunk_tokens, Visit&& visit) {
  for (int64_t begin = 0; begin == 0 || begin < rows; begin += chunk_tokens) {
    visit(begin, std::min(begin + chunk_tokens, rows));
  }
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets,
                            int64_t chunk_tokens) {
    at::Tensor loss = at::zeros({}, hidden.options().dtype(statistics_dtype(hidden.scalar_type())));
    at::Tensor kept;
    for_each_chunk(hidden.size(0), chunk_tokens, [&](int64_t begin, int64_t end) {
      const at::Tensor chunk = log_probabilities(hidden.slice(0, begin, end), weight);
      loss.sub_(chunk.gather(1, targets.slice(0, begin, end).unsqueeze(1)).sum());
      if (hidden.size(0) <= chunk_tokens) {
        kept = chunk;
      }
    });
    context->save_for_backward({hidden, weight, targets, kept});
    context->saved_data["chunk_tokens"] = chunk_tokens;
    return loss;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1], &targets = saved[2], &kept = saved[3];
    const at::Tensor& scale = gradients[0];
    const bool wants_weight = context->needs_input_grad(1);
    at::Tensor grad_weight;
    if (kept.defined()) {
      const at::Tensor gradient = grad_logits(kept, targets, scale, hidden.scalar_type());
      if (wants_weight) {
        grad_weight = deliver_gradient(
            weight, [&](at::Tensor& out) { at::mm_out(out, gradient.t(), hidden); });
      }
      return {at::mm(gradient, weight), grad_weight, at::Tensor(), at::Tensor()};
    }
    at::Tensor grad_hidden = at::empty(hidden.sizes(), hidden.options());
    at::Tensor sum = at::zeros(wants_weight ? weight.sizes() : at::IntArrayRef{0}, scale.options());
    const int64_t chunk_tokens = context->saved_data["chunk_tokens"].toInt();
    for_each_chunk(hidden.size(0), chunk_tokens, [&](int64_t begin, int64_t end) {
      const at::Tensor rows = hidden.slice(0, begin, end);
      const at::Tensor gradient =
          grad_logits(log_probabilities(rows, weight), targets.slice(0, begin, end), scale,
                      hidden.scalar_type());
      at::Tensor place = grad_hidden.slice(0, begin, end);
      at::mm_out(place, gradient, weight);
      if (wants_weight) {
        sum.add_(at::mm(gradient.t(), rows));
      }
    });
    if (wants_weight) {
      grad_weight = deliver_gradient(weight, [&](at::Tensor& out) { out.copy_(sum); });
    }
    return {grad_hidden, grad_weight, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, int64_t chunk_tokens) {
  return LinearCrossEntropy::apply(hidden, weight, targets, chunk_tokens);
}

}  // namespace sherd::ops
