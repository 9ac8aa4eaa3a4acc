#include "ops/shared/blockwise_attention.h"

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "ops/shared/gradient.h"

// Shapes: B batch, N heads, K key heads, T tokens, H head size; M = B × K, the matrices of a
// batched product; R = N ÷ K heads that share one; n queries of a block; S keys that a block sees.

namespace sherd::ops {
namespace {

constexpr int64_t kBlockQueries = 128;

// [B, K, T, H] -> [M, T, H], contiguous: products read it once for every block
at::Tensor as_matrices(const at::Tensor& heads) {
  return heads.reshape({-1, heads.size(2), heads.size(3)}).contiguous();
}

double scale_of(const at::Tensor& query) {
  return 1 / std::sqrt(static_cast<double>(query.size(3)));
}

// The walk over blocks of queries, with memory that all of them use.
class Blocks {
 public:
  Blocks(const at::Tensor& query, const at::Tensor& key, const at::Tensor& slopes)
      : matrices_(key.size(0) * key.size(1)),
        group_(query.size(1) / key.size(1)),
        heads_(query.size(1)),
        tokens_(query.size(2)),
        head_size_(query.size(3)),
        scale_(scale_of(query)),
        options_(query.options()),
        slopes_(slopes) {}

  // A block's queries, or what has their shape: [M, R × n, H]
  [[nodiscard]] at::Tensor take(const at::Tensor& grouped, int64_t begin, int64_t end) const {
    return grouped.slice(2, begin, end).reshape({matrices_, group_ * (end - begin), head_size_});
  }
  // [B, N, T, H] -> [M, R, T, H]
  [[nodiscard]] at::Tensor grouped(const at::Tensor& heads) const {
    return heads.reshape({matrices_, group_, tokens_, head_size_});
  }
  [[nodiscard]] at::Tensor room() const {
    const int64_t queries = std::min(kBlockQueries, tokens_);
    return at::empty({matrices_ * group_ * queries * tokens_}, options_);
  }
  // The part of such room that a block's scores take: [M, R × n, S]
  [[nodiscard]] at::Tensor scores(const at::Tensor& room, int64_t begin, int64_t end) const {
    const int64_t queries = end - begin;
    return room.narrow(0, 0, matrices_ * group_ * queries * end)
        .view({matrices_, group_ * queries, end});
  }
  [[nodiscard]] ScoreBlock block(int64_t begin, int64_t end) const {
    return {begin, end - begin, heads_, scale_, slopes_};
  }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (int64_t begin = 0; begin < tokens_ && matrices_ > 0; begin += kBlockQueries) {
      visit(begin, std::min(begin + kBlockQueries, tokens_));
    }
  }
  // A block's part of a number a query [M × R, T]: [M × R × n], contiguous
  [[nodiscard]] static at::Tensor numbers(const at::Tensor& all, int64_t begin, int64_t end) {
    return all.slice(1, begin, end).reshape({-1}).contiguous();  // of one query it is a view
  }
  [[nodiscard]] at::Tensor number_a_query() const {
    return at::empty({matrices_ * group_, tokens_}, wide_options());
  }
  [[nodiscard]] at::TensorOptions wide_options() const {
    return options_.dtype(statistics_dtype(options_.dtype().toScalarType()));
  }

 private:
  int64_t matrices_, group_, heads_, tokens_, head_size_;
  double scale_;
  at::TensorOptions options_;
  at::Tensor slopes_;
};

void add_to(const at::Tensor& sum, const at::Tensor& part, int64_t end) {
  sum.narrow(1, 0, end).add_(part);
}

// [B, T, N × H] as [M, R, T, H]
at::Tensor by_head(const at::Tensor& packed, const at::Tensor& query, const at::Tensor& key) {
  const int64_t key_heads = key.size(1), group = query.size(1) / key_heads;
  return packed.view({query.size(0), query.size(2), key_heads, group, query.size(3)})
      .permute({0, 2, 3, 1, 4});
}

}  // namespace

AttentionOutput blockwise_attention(const AttentionSteps& steps, const at::Tensor& query,
                                    const at::Tensor& key, const at::Tensor& value,
                                    const at::Tensor& slopes) {
  const Blocks blocks(query, key, slopes);
  const at::Tensor queries = blocks.grouped(query);
  const at::Tensor keys = as_matrices(key);
  const at::Tensor values = as_matrices(value);
  AttentionOutput output;
  output.mixed_BTN =
      at::empty({query.size(0), query.size(2), query.size(1) * query.size(3)}, query.options());
  output.log_sums_BNT = blocks.number_a_query();
  const at::Tensor places = by_head(output.mixed_BTN, query, key);
  const at::Tensor room = blocks.room();
  blocks.for_each([&](int64_t begin, int64_t end) {
    at::Tensor scores = blocks.scores(room, begin, end);
    at::bmm_out(scores, blocks.take(queries, begin, end), keys.narrow(1, 0, end).transpose(1, 2));
    const at::Tensor kept = output.log_sums_BNT.slice(1, begin, end);
    at::Tensor log_sums = at::empty({kept.numel()}, kept.options());
    steps.softmax(scores, log_sums, blocks.block(begin, end));
    kept.copy_(log_sums.view(kept.sizes()));
    const at::Tensor place = places.slice(3, begin, end);
    place.copy_(at::bmm(scores, values.narrow(1, 0, end)).view(place.sizes()));
  });
  return output;
}

AttentionGradients blockwise_attention_backward(const AttentionSteps& steps,
                                                const at::Tensor& query, const at::Tensor& key,
                                                const at::Tensor& value, const at::Tensor& slopes,
                                                const at::Tensor& log_sums_BNT,
                                                const at::Tensor& grad_mixed_BTN) {
  const Blocks blocks(query, key, slopes);
  const at::Tensor queries = blocks.grouped(query);
  const at::Tensor keys = as_matrices(key);
  const at::Tensor values = as_matrices(value);
  const at::Tensor grad_mixed = blocks.grouped(by_head(grad_mixed_BTN.contiguous(), query, key));
  at::Tensor grad_query = at::empty(query.sizes(), query.options());
  const at::Tensor grad_queries = blocks.grouped(grad_query);
  // Summed over blocks of queries, which 16 bits would lose bits by.
  const at::Tensor grad_keys = at::zeros(keys.sizes(), blocks.wide_options());
  const at::Tensor grad_values = at::zeros(keys.sizes(), blocks.wide_options());
  const at::Tensor room = blocks.room();
  const at::Tensor grad_room = blocks.room();
  blocks.for_each([&](int64_t begin, int64_t end) {
    const at::Tensor block_queries = blocks.take(queries, begin, end);
    const at::Tensor block_grad = blocks.take(grad_mixed, begin, end);
    const at::Tensor seen = keys.narrow(1, 0, end);
    at::Tensor scores = blocks.scores(room, begin, end);
    at::Tensor grad_scores = blocks.scores(grad_room, begin, end);
    at::bmm_out(scores, block_queries, seen.transpose(1, 2));
    at::bmm_out(grad_scores, block_grad, values.narrow(1, 0, end).transpose(1, 2));
    steps.softmax_backward(scores, grad_scores, Blocks::numbers(log_sums_BNT, begin, end),
                           blocks.block(begin, end));
    add_to(grad_values, at::bmm(scores.transpose(1, 2), block_grad), end);
    add_to(grad_keys, at::bmm(grad_scores.transpose(1, 2), block_queries), end);
    const at::Tensor place = grad_queries.slice(2, begin, end);
    place.copy_(at::bmm(grad_scores, seen).view(place.sizes()));
  });
  const auto like_key = [&](const at::Tensor& sum) {
    return sum.to(key.scalar_type()).view(key.sizes());
  };
  return {grad_query, like_key(grad_keys), like_key(grad_values)};
}

at::Tensor attention_of_one_query(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& positions,
                                  const at::Tensor& slopes) {
  const int64_t batch = query.size(0), heads = query.size(1), head_size = query.size(3);
  const int64_t key_heads = key.size(1), length = key.size(2);
  const at::Tensor queries = query.reshape({batch * key_heads, heads / key_heads, head_size});
  const auto matrices = [&](const at::Tensor& cached) {
    return cached.reshape({-1, length, head_size});
  };
  at::Tensor scores = at::bmm(queries, matrices(key).transpose(1, 2)).mul_(scale_of(query));
  if (slopes.defined()) {
    scores = scores.to(statistics_dtype(scores.scalar_type()));
    const at::Tensor distances =
        at::arange(length, scores.options()) - positions.view({-1, 1, 1});  // [B, 1, S]
    scores.view({batch, heads, 1, length}).add_(slopes.view({-1, 1, 1}) * distances.unsqueeze(-3));
  }
  const at::Tensor future =
      at::arange(length, positions.options()) > positions.unsqueeze(1);  // [B, S]
  scores.view({batch, heads, length}).masked_fill_(future.unsqueeze(1), kMasked);
  const at::Tensor probabilities =
      at::_softmax(scores, -1, /*half_to_float=*/false).to(query.scalar_type());
  return at::bmm(probabilities, matrices(value)).view({batch, 1, heads * head_size});
}

}  // namespace sherd::ops
