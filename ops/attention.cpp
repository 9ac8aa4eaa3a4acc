#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/cpu/attention.h"
#include "ops/cpu/dispatch.h"
#include "ops/gradient.h"

// Shapes: B batch, N heads, K key heads, R = N / K heads that share one, T tokens, H head size;
// M = B × K, the number of matrices a batched product works on.

namespace sherd::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kBlockTokens = 64;  // queries whose scores are held at a time
constexpr double kMasked = -std::numeric_limits<double>::infinity();

// [B, K, T, H] -> [M, T, H], contiguous.
at::Tensor as_matrices(const at::Tensor& heads) {
  return heads.reshape({-1, heads.size(2), heads.size(3)});
}

// Adds slope × (s − position) to scores [..., N, x, S] in fp32 or wider; positions [..., x, 1].
void add_alibi(const at::Tensor& scores, const at::Tensor& slopes, const at::Tensor& positions) {
  const at::Tensor distances = at::arange(scores.size(-1), scores.options()) - positions;
  scores.add_(slopes.view({-1, 1, 1}) * distances.unsqueeze(-3));
}

// Queries and keys of one call as batched matrices, and the walk over blocks of queries.
class CausalBlocks {
 public:
  CausalBlocks(const at::Tensor& query, const at::Tensor& key, const at::Tensor& alibi_slopes)
      : tokens_(query.size(2)),
        groups_(query.size(1) / key.size(1)),
        query_(grouped(query)),
        key_(as_matrices(key)),
        scale_(1 / std::sqrt(static_cast<double>(query.size(3)))),
        unused_(at::empty({1, 1, 1}, query.options())),
        future_(at::full({kBlockTokens, kBlockTokens}, kMasked, query.options()).triu_(1)),
        alibi_slopes_(alibi_slopes) {}

  // [B, N, T, H] -> [M, R, T, H]
  [[nodiscard]] at::Tensor grouped(const at::Tensor& heads) const {
    return heads.reshape({-1, groups_, tokens_, heads.size(3)});
  }
  // Queries begin … end − 1 of such a tensor: [M, R × n, H]
  [[nodiscard]] static at::Tensor block(const at::Tensor& grouped, int64_t begin, int64_t end) {
    return grouped.slice(2, begin, end).flatten(1, 2);
  }
  [[nodiscard]] at::Tensor queries(int64_t begin, int64_t end) const {
    return block(query_, begin, end);
  }
  // The keys that the queries before `end` may see: [M, end, H]
  [[nodiscard]] at::Tensor keys(int64_t end) const { return key_.narrow(1, 0, end); }

  // softmax(scale × queries · keysᵀ) of a block, the future masked: [M, R × n, end]
  [[nodiscard]] at::Tensor probabilities(int64_t begin, int64_t end) const {
    const int64_t count = end - begin;
    at::Tensor scores = at::baddbmm(unused_, queries(begin, end), keys(end).transpose(1, 2),
                                    /*beta=*/0, /*alpha=*/scale_);
    if (alibi_slopes_.defined()) {
      scores = scores.to(statistics_dtype(scores.scalar_type()));
      add_alibi(scores.view({-1, alibi_slopes_.size(0), count, end}), alibi_slopes_,
                at::arange(begin, end, scores.options()).unsqueeze(1));
    }
    scores.view({-1, count, end})
        .narrow(2, begin, count)
        .add_(future_.narrow(0, 0, count).narrow(1, 0, count));
    return at::_softmax(scores, -1, /*half_to_float=*/false).to(query_.scalar_type());
  }

  // Calls `visit(begin, end)` for each block.
  template <class Visit>
  void for_each_block(Visit&& visit) const {
    for (int64_t begin = 0; begin < tokens_; begin += kBlockTokens) {
      visit(begin, std::min(begin + kBlockTokens, tokens_));
    }
  }
  [[nodiscard]] double scale() const { return scale_; }

 private:
  int64_t tokens_;
  int64_t groups_;
  at::Tensor query_;
  at::Tensor key_;
  double scale_;
  at::Tensor unused_;  // what a product with beta = 0 is added to
  at::Tensor future_;
  at::Tensor alibi_slopes_;  // undefined without ALiBi
};

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& alibi_slopes) {
    RECORD_FUNCTION("sherd::attention", {});
    const at::Tensor slopes = alibi_slopes.value_or(at::Tensor());
    context->saved_data["fast"] = cpu::serves(query);
    if (cpu::serves(query)) {
      const cpu::AttentionOutput output = cpu::attention_forward(query, key, value, slopes);
      context->save_for_backward({query, key, value, slopes, output.log_sums_BNT});
      return output.mixed_BTN;
    }
    context->save_for_backward({query, key, value, slopes});
    const int64_t batch = query.size(0), heads = query.size(1), tokens = query.size(2);
    const int64_t head_size = query.size(3), key_heads = key.size(1);
    const CausalBlocks blocks(query, key, slopes);
    const at::Tensor values = as_matrices(value);
    at::Tensor output = at::empty({batch, tokens, heads * head_size}, query.options());
    const at::Tensor by_head = output.view({batch, tokens, key_heads, heads / key_heads, head_size})
                                   .permute({0, 2, 3, 1, 4});
    blocks.for_each_block([&](int64_t begin, int64_t end) {
      const at::Tensor mixed = at::bmm(blocks.probabilities(begin, end), values.narrow(1, 0, end));
      const at::Tensor place = by_head.slice(3, begin, end);
      place.copy_(mixed.view(place.sizes()));
    });
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_FUNCTION("sherd::attention_backward", {});
    once_differentiable("sherd::attention");
    const auto saved = context->get_saved_variables();
    const at::Tensor &query = saved[0], &key = saved[1], &value = saved[2];
    if (context->saved_data["fast"].toBool()) {
      auto grads = cpu::attention_backward(query, key, value, saved[3], saved[4], gradients[0]);
      return {grads.query, grads.key, grads.value, at::Tensor()};
    }
    const CausalBlocks blocks(query, key, /*alibi_slopes=*/saved[3]);
    const at::Tensor values = as_matrices(value);
    const at::Tensor grad_output =
        blocks.grouped(gradients[0]
                           .view({query.size(0), query.size(2), query.size(1), query.size(3)})
                           .transpose(1, 2));
    at::Tensor grad_query = at::empty(query.sizes(), query.options());
    // Summed over blocks of queries, which bf16 would lose bits by.
    const auto sum_options = query.options().dtype(statistics_dtype(query.scalar_type()));
    at::Tensor grad_keys = at::zeros_like(values, sum_options);
    at::Tensor grad_values = at::zeros_like(values, sum_options);
    const at::Tensor grad_queries = blocks.grouped(grad_query);
    blocks.for_each_block([&](int64_t begin, int64_t end) {
      const at::Tensor grad_mixed = CausalBlocks::block(grad_output, begin, end);
      const at::Tensor probabilities = blocks.probabilities(begin, end);
      const at::Tensor grad_probabilities =
          at::bmm(grad_mixed, values.narrow(1, 0, end).transpose(1, 2));
      const at::Tensor grad_scores =
          at::_softmax_backward_data(grad_probabilities, probabilities, -1, query.scalar_type())
              .mul_(blocks.scale());
      grad_values.narrow(1, 0, end).add_(at::bmm(probabilities.transpose(1, 2), grad_mixed));
      grad_keys.narrow(1, 0, end).add_(
          at::bmm(grad_scores.transpose(1, 2), blocks.queries(begin, end)));
      const at::Tensor place = grad_queries.slice(2, begin, end);
      place.copy_(at::bmm(grad_scores, blocks.keys(end)).view(place.sizes()));
    });
    const auto like_value = [&](const at::Tensor& sum) {
      return sum.to(query.scalar_type()).view(value.sizes());
    };
    return {grad_query, like_value(grad_keys), like_value(grad_values), at::Tensor()};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& alibi_slopes) {
  return Attention::apply(query, key, value, alibi_slopes);
}

at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& positions,
                            const std::optional<at::Tensor>& alibi_slopes) {
  const int64_t batch = query.size(0), heads = query.size(1), head_size = query.size(3);
  const int64_t key_heads = key.size(1), length = key.size(2);
  const at::Tensor queries = query.reshape({batch * key_heads, heads / key_heads, head_size});
  at::Tensor scores = at::bmm(queries, as_matrices(key).transpose(1, 2))
                          .mul_(1 / std::sqrt(static_cast<double>(head_size)));
  if (alibi_slopes) {
    scores = scores.to(statistics_dtype(scores.scalar_type()));
    add_alibi(scores.view({batch, heads, 1, length}), *alibi_slopes, positions.view({-1, 1, 1}));
  }
  const at::Tensor future =
      at::arange(length, positions.options()) > positions.unsqueeze(1);  // [B, S]
  scores.view({batch, heads, length}).masked_fill_(future.unsqueeze(1), kMasked);
  const at::Tensor probabilities =
      at::_softmax(scores, -1, /*half_to_float=*/false).to(query.scalar_type());
  return at::bmm(probabilities, as_matrices(value)).view({batch, 1, heads * head_size});
}

}  // namespace sherd::ops
