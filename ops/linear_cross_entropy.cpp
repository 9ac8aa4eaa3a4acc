#include "ops/linear_cross_entropy.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/backend.h"
#include "ops/dropout.h"
#include "ops/linear.h"
#include "ops/shared/gradient.h"
#include "ops/shared/products.h"
#include "ops/shared/recorded.h"

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The head: its weight, and the second half of its update. What the first half makes of the rows
// comes with them.
struct Head {
  at::Tensor weight;  // [V, D]
  at::Tensor B;       // [V, r]; undefined without an update
};
struct HeadRows {
  at::Tensor hidden;    // [R, D]
  at::Tensor low_rank;  // [R, r], scaled; undefined without an update

  [[nodiscard]] HeadRows slice(int64_t begin, int64_t end) const {
    return {hidden.slice(0, begin, end),
            low_rank.defined() ? low_rank.slice(0, begin, end) : at::Tensor()};
  }
};

// How rows of logits become a loss: the caller's wishes.
struct LossTerms {
  at::Tensor targets;      // [R]
  at::Tensor row_weights;  // fp32 or wider [R]; undefined for none
  LogitMap map;

  [[nodiscard]] LossTerms of_rows(int64_t begin, int64_t end) const {
    return {targets.slice(0, begin, end),
            row_weights.defined() ? row_weights.slice(0, begin, end) : at::Tensor(), map};
  }
};

at::Tensor logits_of(const Backend& backend, const HeadRows& rows, const Head& head,
                     const LogitMap& map) {
  at::Tensor logits = at::empty({rows.hidden.size(0), head.weight.size(0)}, rows.hidden.options());
  backend.head_logits(logits, rows.hidden, head.weight);
  if (head.B.defined()) {
    backend.add_mm(logits, rows.low_rank, head.B.t());
  }
  if (map.divisor != 1) {
    logits.div_(map.divisor);
  }
  if (map.cap) {
    logits.div_(*map.cap).tanh_().mul_(*map.cap);
  }
  return logits;
}

at::Tensor losses_of_rows(const CrossEntropy& result, const at::Tensor& logits,
                          const at::Tensor& targets) {
  const at::Tensor of_targets = logits.gather(1, targets.unsqueeze(1)).squeeze(1);
  return result.log_sums_R - of_targets.to(result.log_sums_R.scalar_type());
}

CrossEntropy loss_of(const Backend& backend, const at::Tensor& logits, const LossTerms& terms) {
  CrossEntropy result = backend.cross_entropy(logits, terms.targets);
  if (terms.row_weights.defined()) {
    result.loss_sum = (losses_of_rows(result, logits, terms.targets) * terms.row_weights).sum();
  }
  return result;
}

constexpr int64_t kCappedRows = 64;  // whose slopes are there at a time

// Turns logits into the gradient of what the head's product made, × scale (a scalar).
void turn_into_gradient(const Backend& backend, at::Tensor& logits, const at::Tensor& log_sums,
                        const at::Tensor& scale, const LossTerms& terms) {
  const at::Tensor of_map = terms.map.divisor == 1 ? scale : scale / terms.map.divisor;
  const at::Tensor scales =
      terms.row_weights.defined() ? of_map * terms.row_weights.to(of_map.scalar_type()) : of_map;
  if (!terms.map.cap) {
    return backend.cross_entropy_backward(logits, terms.targets, log_sums, scales);
  }
  for (int64_t begin = 0; begin < logits.size(0); begin += kCappedRows) {
    const int64_t end = std::min(begin + kCappedRows, logits.size(0));
    at::Tensor rows = logits.slice(0, begin, end);
    const at::Tensor slope = (rows / *terms.map.cap).square_().neg_().add_(1);
    backend.cross_entropy_backward(rows, terms.targets.slice(0, begin, end),
                                   log_sums.slice(0, begin, end),
                                   scales.dim() == 0 ? scales : scales.slice(0, begin, end));
    rows.mul_(slope);
  }
}

// Of the head's input, in the dtype of `options`.
at::Tensor hidden_gradient(const Backend& backend, const at::Tensor& grad_logits,
                           const at::Tensor& weight, const at::TensorOptions& options) {
  at::Tensor gradient = at::empty({grad_logits.size(0), weight.size(1)}, options);
  backend.head_input_gradient(gradient, grad_logits, weight);
  return gradient;
}

// One chunk: the logits are kept, and become their gradient in backward.
constexpr const char* kLogits = "logits";
constexpr const char* kDivisor = "divisor";
constexpr const char* kCap = "cap";

void keep_map(AutogradContext* context, const LogitMap& map) {
  context->saved_data[kDivisor] = map.divisor;
  context->saved_data[kCap] = map.cap;
}

LogitMap kept_map(AutogradContext* context) {
  return {context->saved_data.at(kDivisor).toDouble(),
          context->saved_data.at(kCap).toOptional<double>()};
}

struct OneChunk : torch::autograd::Function<OneChunk> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const std::optional<at::Tensor>& low_rank,
                            const std::optional<at::Tensor>& B, const LossTerms& terms) {
    RECORD_FUNCTION("sherd::linear_cross_entropy", Recorded({hidden, weight}));
    const Backend& backend = choose_backend(*context, hidden);
    const HeadRows rows{hidden, low_rank.value_or(at::Tensor())};
    const Head head{weight, B.value_or(at::Tensor())};
    const at::Tensor logits = logits_of(backend, rows, head, terms.map);
    const CrossEntropy result = loss_of(backend, logits, terms);
    context->save_for_backward({hidden, weight, terms.targets, result.log_sums_R, terms.row_weights,
                                rows.low_rank, head.B});
    context->saved_data[kLogits] = logits;
    keep_map(context, terms.map);
    return result.loss_sum;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    RECORD_FUNCTION("sherd::linear_cross_entropy_backward", Recorded({saved[0], saved[1]}));
    once_differentiable("sherd::linear_cross_entropy");
    const Backend& backend = chosen_backend(*context);
    const at::Tensor &hidden = saved[0], &weight = saved[1], &low_rank = saved[5], &B = saved[6];
    const LossTerms terms{saved[2], saved[4], kept_map(context)};
    at::Tensor logits = context->saved_data[kLogits].toTensor();
    if (!logits.defined()) {  // a second time through the same graph
      logits = logits_of(backend, {hidden, low_rank}, {weight, B}, terms.map);
    }
    context->saved_data[kLogits] = at::Tensor();
    turn_into_gradient(backend, logits, /*log_sums=*/saved[3], gradients[0], terms);
    at::Tensor grad_weight;
    if (context->needs_input_grad(1)) {
      grad_weight =
          deliver_gradient(weight, [&](at::Tensor& out) { backend.mm(out, logits.t(), hidden); });
    }
    const at::Tensor grad_hidden = context->needs_input_grad(0)
                                       ? hidden_gradient(backend, logits, weight, weight.options())
                                       : at::Tensor();
    at::Tensor grad_low_rank, grad_B;
    if (B.defined() && context->needs_input_grad(2)) {
      grad_low_rank = product_of(backend, logits, B);
    }
    if (B.defined() && context->needs_input_grad(3)) {
      grad_B = deliver_gradient(B, [&](at::Tensor& out) { backend.mm(out, logits.t(), low_rank); });
    }
    return {grad_hidden, grad_weight, grad_low_rank, grad_B, at::Tensor()};
  }
};

// Gradients of several chunks are computed before the loss's own gradient is known, which in fp16
// is large so that small numbers are not lost (loss scaling): this stands in for it, and is divided
// out in fp32. A logit's gradient is at most 1, so that the factor cannot overflow.
double stand_in_factor(c10::ScalarType dtype) {
  return dtype == at::kHalf ? 4096.0 : 1.0;
}

// Of the products of a chunk's gradients: what fp16 could not hold is multiplied out in fp32.
c10::ScalarType product_dtype(c10::ScalarType dtype) {
  return dtype == at::kHalf ? at::kFloat : dtype;
}

constexpr int64_t kScaledBytes = int64_t{1} << 20;  // at a time

// out = a × b, where `out` may have fewer bits: LibTorch takes room for what it rounds.
void multiply(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const bool rounds = out.scalar_type() != a.scalar_type() && !a.is_cuda();  // which takes none
  const auto row_bytes = a.size(1) * static_cast<int64_t>(a.element_size());
  const int64_t rows =
      rounds ? std::max<int64_t>(1, kScaledBytes / std::max<int64_t>(1, row_bytes)) : a.size(0);
  for (int64_t begin = 0; begin < a.size(0); begin += rows) {
    at::Tensor part = out.slice(0, begin, std::min(begin + rows, a.size(0)));
    if (!part.is_meta()) {
      at::mul_out(part, a.slice(0, begin, begin + part.size(0)), b);
    } else if (rounds) {
      static_cast<void>(at::empty(part.sizes(), a.options()));
    }
  }
}

// Which gradients several chunks sum up.
struct WantedSums {
  bool hidden = false;
  bool weight = false;
  bool low_rank = false;
  bool B = false;
  [[nodiscard]] bool any() const { return hidden || weight || low_rank || B; }
};

// Gradients of the sum over rows, in fp32 or wider, chunk by chunk. Empty where not wanted.
struct GradientSums {
  at::Tensor hidden, weight, low_rank, B;

  GradientSums(const HeadRows& rows, const Head& head, const WantedSums& wanted) {
    const auto wide = wide_options(rows.hidden);
    const auto sizes = [](bool is_wanted, const at::Tensor& like) {
      return is_wanted ? like.sizes().vec() : std::vector<int64_t>{0};
    };
    hidden = at::empty(sizes(wanted.hidden, rows.hidden), wide);
    weight = at::zeros(sizes(wanted.weight, head.weight), wide);
    low_rank = at::empty(sizes(wanted.low_rank, rows.low_rank), wide);
    B = at::zeros(sizes(wanted.B, head.B), wide);
  }

  // `grad_logits` of the rows from `begin` on; products are rounded as `options` have it.
  void add(const Backend& backend, const at::Tensor& grad_logits, const HeadRows& rows,
           const Head& head, int64_t begin, const at::TensorOptions& options) {
    const int64_t end = begin + grad_logits.size(0);
    if (hidden.dim() == 2) {
      hidden.slice(0, begin, end)
          .copy_(hidden_gradient(backend, grad_logits, head.weight, options));
    }
    if (weight.dim() == 2) {
      add_product(backend, weight, grad_logits.t(), rows.hidden, options);
    }
    if (low_rank.dim() == 2) {
      at::Tensor of_rows = at::empty(rows.low_rank.sizes(), options);
      backend.mm(of_rows, grad_logits, head.B);
      low_rank.slice(0, begin, end).copy_(of_rows);
    }
    if (B.dim() == 2) {
      add_product(backend, B, grad_logits.t(), rows.low_rank, options);
    }
  }

 private:
  static void add_product(const Backend& backend, at::Tensor& sum, const at::Tensor& a,
                          const at::Tensor& b, const at::TensorOptions& options) {
    at::Tensor part = at::empty(sum.sizes(), options);
    backend.mm(part, a, b);
    backend.add_to_sum(sum, part);
  }
};

// Several chunks: each one's gradients are computed while its logits are there, of the sum itself,
// and multiplied by the sum's gradient in backward. Those of weights are summed in fp32.
struct SeveralChunks : torch::autograd::Function<SeveralChunks> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const std::optional<at::Tensor>& low_rank,
                            const std::optional<at::Tensor>& B, const LossTerms& terms,
                            int64_t chunk_tokens, const WantedSums& wanted) {
    RECORD_FUNCTION("sherd::chunked_linear_cross_entropy",
                    Recorded({hidden, weight, chunk_tokens}));
    const Backend& backend = choose_backend(*context, hidden);
    const auto product_options = hidden.options().dtype(product_dtype(hidden.scalar_type()));
    const at::Tensor factor =
        at::full({}, stand_in_factor(hidden.scalar_type()), wide_options(hidden));
    const HeadRows all{hidden, low_rank.value_or(at::Tensor())};
    const Head head{weight, B.value_or(at::Tensor())};
    at::Tensor loss = at::zeros({}, wide_options(hidden));
    GradientSums sums(all, head, wanted);
    for (int64_t begin = 0; begin < hidden.size(0); begin += chunk_tokens) {
      const int64_t end = std::min(begin + chunk_tokens, hidden.size(0));
      const HeadRows rows = all.slice(begin, end);
      const LossTerms of_rows = terms.of_rows(begin, end);
      at::Tensor logits = logits_of(backend, rows, head, terms.map);
      const CrossEntropy result = loss_of(backend, logits, of_rows);
      loss.add_(result.loss_sum);
      if (wanted.any()) {
        turn_into_gradient(backend, logits, result.log_sums_R, factor, of_rows);
        sums.add(backend, logits, rows, head, begin, product_options);
      }
    }
    context->save_for_backward({weight, sums.hidden, sums.weight, head.B, sums.low_rank, sums.B});
    return loss;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    RECORD_FUNCTION("sherd::chunked_linear_cross_entropy_backward", Recorded({saved[2]}));
    once_differentiable("sherd::linear_cross_entropy");
    const at::Tensor &weight = saved[0], &B = saved[3];
    const at::Tensor scale = gradients[0] / stand_in_factor(weight.scalar_type());
    const auto delivered = [&](const at::Tensor& parameter, const at::Tensor& sum) {
      return deliver_gradient(parameter, [&](at::Tensor& out) { multiply(out, sum, scale); });
    };
    const auto of_rows = [&](const at::Tensor& sums) {
      return (sums * scale).to(weight.scalar_type());
    };
    variable_list result(7);  // as forward takes its arguments
    result[0] = context->needs_input_grad(0) ? of_rows(saved[1]) : at::Tensor();
    result[1] = context->needs_input_grad(1) ? delivered(weight, saved[2]) : at::Tensor();
    const bool has_update = B.defined();
    result[2] = has_update && context->needs_input_grad(2) ? of_rows(saved[4]) : at::Tensor();
    result[3] = has_update && context->needs_input_grad(3) ? delivered(B, saved[5]) : at::Tensor();
    return result;
  }
};

// What the first half of an update makes of the rows -> [R, r].
at::Tensor low_rank_rows(const at::Tensor& hidden, const LowRank& update) {
  return linear(dropout(hidden, update.dropout), update.A) * update.scale;
}

void check_chunk(int64_t chunk_tokens) {
  TORCH_CHECK_VALUE(chunk_tokens > 0,
                    "[linear_cross_entropy] expected chunks of at least 1 token, got ",
                    chunk_tokens);
}

int64_t bytes_of(c10::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

// Whether forward holds less at once in several chunks. Beside its logits, a chunk needs the
// weight's gradient and the sum of them in fp32; products need room of their own.
bool chunks_save_memory(const at::Tensor& hidden, const at::Tensor& weight, int64_t chunk_tokens,
                        bool wants_weight) {
  const Backend& backend = backend_of(hidden);
  const c10::ScalarType dtype = hidden.scalar_type();
  const int64_t rows = hidden.size(0), width = hidden.size(1), vocabulary = weight.size(0);
  if (rows <= chunk_tokens) {
    return false;
  }
  const auto logits = [&](int64_t count) { return count * vocabulary * bytes_of(dtype); };
  const auto logits_room = [&](int64_t count) {
    return backend.mm_room_bytes(dtype, dtype, count, width, vocabulary);
  };
  int64_t sum = 0, gradient = 0;
  if (wants_weight) {
    const c10::ScalarType product = product_dtype(dtype);
    sum = weight.numel() * bytes_of(statistics_dtype(dtype));
    gradient = weight.numel() * bytes_of(product) +
               backend.mm_room_bytes(product, dtype, vocabulary, chunk_tokens, width);
  }
  const int64_t of_one_chunk = logits(rows) + logits_room(rows);
  const int64_t of_several =
      logits(chunk_tokens) + sum + std::max(logits_room(chunk_tokens), gradient);
  return of_one_chunk > of_several;
}

}  // namespace

at::Tensor mapped(const at::Tensor& logits, const LogitMap& map) {
  const at::Tensor divided = map.divisor == 1 ? logits : logits / map.divisor;
  return map.cap ? (divided / *map.cap).tanh() * *map.cap : divided;
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, int64_t chunk_tokens,
                                const LogitMap& map, const at::Tensor& row_weights,
                                const LowRank& update) {
  const LossTerms terms{targets, row_weights, map};
  check_chunk(chunk_tokens);
  std::optional<at::Tensor> low_rank, B;
  if (update) {
    low_rank = low_rank_rows(hidden, update);
    B = update.B;
  }
  const auto learns = [](const std::optional<at::Tensor>& tensor) {
    return at::GradMode::is_enabled() && tensor && tensor->requires_grad();
  };
  const WantedSums wanted{learns(hidden), learns(weight), learns(low_rank), learns(B)};
  if (!chunks_save_memory(hidden, weight, chunk_tokens, wanted.weight)) {
    return OneChunk::apply(hidden, weight, low_rank, B, terms);
  }
  return SeveralChunks::apply(hidden, weight, low_rank, B, terms, chunk_tokens, wanted);
}

at::Tensor linear_cross_entropy_of_rows(const at::Tensor& hidden, const at::Tensor& weight,
                                        const at::Tensor& targets, int64_t chunk_tokens,
                                        const LogitMap& map, const LowRank& update) {
  check_chunk(chunk_tokens);
  const c10::AutoGradMode no_gradient(false);
  RECORD_FUNCTION("sherd::linear_cross_entropy", Recorded({hidden, weight}));  // as much work
  const Backend& backend = backend_of(hidden);
  const HeadRows all{hidden, update ? low_rank_rows(hidden, update) : at::Tensor()};
  const Head head{weight, update.B};
  at::Tensor losses = at::empty({hidden.size(0)}, wide_options(hidden));
  for (int64_t begin = 0; begin < hidden.size(0); begin += chunk_tokens) {
    const int64_t end = std::min(begin + chunk_tokens, hidden.size(0));
    const at::Tensor of_rows = targets.slice(0, begin, end);
    const at::Tensor logits = logits_of(backend, all.slice(begin, end), head, map);
    losses.slice(0, begin, end)
        .copy_(losses_of_rows(backend.cross_entropy(logits, of_rows), logits, of_rows));
  }
  return losses;
}

}  // namespace sherd::ops
