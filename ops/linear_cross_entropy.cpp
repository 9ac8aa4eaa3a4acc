#include "ops/linear_cross_entropy.h"

#include <algorithm>

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/cross_entropy_rows.h"
#include "ops/cpu/dispatch.h"
#include "ops/gradient.h"
#include "ops/head_products.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// sum (fp32) += part
void add_to_floats(const at::Tensor& sum, const at::Tensor& part) {
  cpu::with_dtype(part, [&](auto type) {
    using T = decltype(type);
    cpu::for_rows(part.numel() / part.size(1), part.size(1), [&](int64_t begin, int64_t end) {
      const int64_t width = part.size(1);
      cpu::kernels<T>().add_to_floats(cpu::data<T>(part) + begin * width,
                                      cpu::mutable_data<float>(sum) + begin * width,
                                      (end - begin) * width);
    });
  });
}

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

// The plain way: log-probabilities in fp32. Of one chunk they are kept; of several they are
// computed again in backward.
struct PlainLinearCrossEntropy : torch::autograd::Function<PlainLinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets,
                            int64_t chunk_tokens) {
    RECORD_FUNCTION("sherd::linear_cross_entropy", {});
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
    RECORD_FUNCTION("sherd::linear_cross_entropy_backward", {});
    once_differentiable("sherd::linear_cross_entropy");
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
      const at::Tensor grad_hidden =
          context->needs_input_grad(0) ? at::mm(gradient, weight) : at::Tensor();
      return {grad_hidden, grad_weight, at::Tensor(), at::Tensor()};
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

at::Tensor logits_of(const at::Tensor& hidden, const at::Tensor& weight) {
  at::Tensor logits = at::empty({hidden.size(0), weight.size(0)}, hidden.options());
  head_logits(logits, hidden, weight);
  return logits;
}

at::Tensor input_gradient(const at::Tensor& grad_logits, const at::Tensor& weight) {
  at::Tensor gradient = at::empty({grad_logits.size(0), weight.size(1)}, weight.options());
  head_input_gradient(gradient, grad_logits, weight);
  return gradient;
}

// One chunk: the logits are kept, and become their gradient in backward.
constexpr const char* kLogits = "logits";

struct OneChunk : torch::autograd::Function<OneChunk> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets) {
    RECORD_FUNCTION("sherd::linear_cross_entropy", {});
    const at::Tensor logits = logits_of(hidden, weight);
    const cpu::CrossEntropy result = cpu::cross_entropy(logits, targets);
    context->save_for_backward({hidden, weight, targets, result.log_sums_R});
    context->saved_data[kLogits] = logits;
    return result.loss_sum;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::linear_cross_entropy_backward", {});
    once_differentiable("sherd::linear_cross_entropy");
    const auto saved = context->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1];
    at::Tensor logits = context->saved_data[kLogits].toTensor();
    if (!logits.defined()) {
      logits = logits_of(hidden, weight);  // a second time through the same graph
    }
    context->saved_data[kLogits] = at::Tensor();
    cpu::cross_entropy_backward(logits, saved[2], saved[3], gradients[0].item<float>());
    at::Tensor grad_weight;
    if (context->needs_input_grad(1)) {
      grad_weight =
          deliver_gradient(weight, [&](at::Tensor& out) { at::mm_out(out, logits.t(), hidden); });
    }
    const at::Tensor grad_hidden =
        context->needs_input_grad(0) ? input_gradient(logits, weight) : at::Tensor();
    return {grad_hidden, grad_weight, at::Tensor()};
  }
};

// Several chunks: each one's gradients are computed while its logits are there, of the sum itself,
// and multiplied by the sum's gradient in backward. The weight's is summed in fp32.
struct SeveralChunks : torch::autograd::Function<SeveralChunks> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets,
                            int64_t chunk_tokens, bool wants_hidden, bool wants_weight) {
    RECORD_FUNCTION("sherd::linear_cross_entropy", {});
    const auto wide = hidden.options().dtype(at::kFloat);
    at::Tensor loss = at::zeros({}, wide);
    at::Tensor grad_hidden = at::empty(wants_hidden ? hidden.sizes() : at::IntArrayRef{0}, wide);
    at::Tensor sum = at::zeros(wants_weight ? weight.sizes() : at::IntArrayRef{0}, wide);
    for_each_chunk(hidden.size(0), chunk_tokens, [&](int64_t begin, int64_t end) {
      const at::Tensor rows = hidden.slice(0, begin, end);
      const at::Tensor labels = targets.slice(0, begin, end);
      const at::Tensor logits = logits_of(rows, weight);
      const cpu::CrossEntropy result = cpu::cross_entropy(logits, labels);
      loss.add_(result.loss_sum);
      if (wants_hidden || wants_weight) {
        cpu::cross_entropy_backward(logits, labels, result.log_sums_R, 1.0F);
      }
      if (wants_hidden) {
        grad_hidden.slice(0, begin, end).copy_(input_gradient(logits, weight));
      }
      if (wants_weight) {
        add_to_floats(sum, at::mm(logits.t(), rows));
      }
    });
    context->save_for_backward({weight, grad_hidden, sum});
    return loss;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::linear_cross_entropy_backward", {});
    once_differentiable("sherd::linear_cross_entropy");
    const auto saved = context->get_saved_variables();
    const at::Tensor &weight = saved[0], &grad_hidden = saved[1], &sum = saved[2];
    const at::Tensor& scale = gradients[0];
    at::Tensor grad_weight;
    if (context->needs_input_grad(1)) {
      grad_weight =
          deliver_gradient(weight, [&](at::Tensor& out) { at::mul_out(out, sum, scale); });
    }
    at::Tensor scaled;
    if (context->needs_input_grad(0)) {
      scaled = (grad_hidden * scale).to(weight.scalar_type());
    }
    return {scaled, grad_weight, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Beside its logits, a chunk needs the weight's gradient and the sum of them in fp32: as much as
// the logits of (1 + 4 / element_size) D rows. Where fewer are saved, several chunks take more
// memory.
bool chunks_save_memory(const at::Tensor& hidden, int64_t chunk_tokens, bool wants_weight) {
  const auto wide = static_cast<int64_t>(sizeof(float) / hidden.element_size());
  const int64_t rows_of_sum = wants_weight ? hidden.size(1) * (1 + wide) : 0;
  return hidden.size(0) > chunk_tokens + rows_of_sum;
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, int64_t chunk_tokens) {
  if (!cpu::serves(hidden)) {
    return PlainLinearCrossEntropy::apply(hidden, weight, targets, chunk_tokens);
  }
  const bool recording = at::GradMode::is_enabled();
  const bool wants_weight = recording && weight.requires_grad();
  if (!chunks_save_memory(hidden, chunk_tokens, wants_weight)) {
    return OneChunk::apply(hidden, weight, targets);
  }
  return SeveralChunks::apply(hidden, weight, targets, chunk_tokens,
                              recording && hidden.requires_grad(), wants_weight);
}

}  // namespace sherd::ops
