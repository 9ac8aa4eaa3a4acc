// Causal attention: the walk over blocks with vectorised loops between its products.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/onednn_products.h"
#include "ops/cpu/products.h"
#include "ops/shared/blockwise_attention.h"

namespace sherd::ops::cpu {
namespace {

ScoreRows rows_of(const at::Tensor& scores, const ScoreBlock& block) {
  return {.columns = scores.size(-1),
          .queries = block.queries,
          .first_query = block.first_query,
          .heads = block.heads,
          .scale = static_cast<float>(block.scale),
          .slopes = data<float>(block.slopes),
          .first_key = block.first_key,
          .window = block.scores.window,
          .soft_cap = static_cast<float>(block.scores.soft_cap)};
}

void softmax(at::Tensor& scores, at::Tensor& log_sums, const ScoreBlock& block) {
  with_dtype(scores, [&](auto type) {
    using T = decltype(type);
    const ScoreRows rows = rows_of(scores, block);
    for_rows(log_sums.numel(), rows.columns, [&](int64_t first, int64_t last) {
      kernels<T>().causal_softmax(rows, mutable_data<T>(scores), mutable_data<float>(log_sums),
                                  first, last);
    });
  });
}

void softmax_backward(at::Tensor& scores, at::Tensor& grad, const at::Tensor& log_sums,
                      const ScoreBlock& block) {
  with_dtype(scores, [&](auto type) {
    using T = decltype(type);
    const ScoreRows rows = rows_of(scores, block);
    for_rows(log_sums.numel(), rows.columns, [&](int64_t first, int64_t last) {
      kernels<T>().causal_softmax_backward(rows, mutable_data<T>(scores), mutable_data<T>(grad),
                                           data<float>(log_sums), first, last);
    });
  });
}

constexpr AttentionSteps kSteps = {&bmm, &softmax, &softmax_backward};

// The dtype that products, and so the scores between them, are computed in. Queries, keys and
// values are widened once: they are small beside the scores.
at::Tensor for_products(const at::Tensor& tensor) {
  return multiplies(tensor.scalar_type(), isa()) ? tensor : tensor.to(at::kFloat);
}

AttentionInputs for_products(const AttentionInputs& inputs) {
  return {for_products(inputs.query),
          for_products(inputs.key),
          for_products(inputs.value),
          inputs.documents,
          inputs.slopes,
          inputs.kernel,
          inputs.scores};
}

// Up to this size heads have less work in products than in scores and copies between them; where
// tiles multiply, up to half of it, which is half a tile's depth. Never by the batch's lengths: a
// sample has the same bits beside any other.
constexpr int64_t kSmallHead = 32;

bool has_small_heads(const AttentionInputs& inputs) {
  const bool has_tiles = isa() == Isa::Amx && inputs.query.scalar_type() == at::kBFloat16;
  return inputs.query.size(2) <= (has_tiles ? kSmallHead / 2 : kSmallHead);
}

// With each head's numbers side by side.
AttentionInputs with_dense_heads(const AttentionInputs& inputs) {
  const auto dense = [](const at::Tensor& heads) {
    return heads.stride(2) == 1 ? heads : heads.contiguous();
  };
  return {dense(inputs.query), dense(inputs.key), dense(inputs.value), inputs.documents,
          inputs.slopes,       inputs.kernel,     inputs.scores};
}

template <class T>
SmallHeads<T> small_heads(const AttentionInputs& inputs) {
  const auto vectors = [](const at::Tensor& heads) {
    return HeadVectors<T>{heads.const_data_ptr<T>(), heads.stride(0), heads.stride(1)};
  };
  return {.query = vectors(inputs.query),
          .key = vectors(inputs.key),
          .value = vectors(inputs.value),
          .bounds = inputs.documents.bounds().data(),
          .slopes = data<float>(inputs.slopes),
          .most_tokens = inputs.documents.longest(),
          .heads = inputs.query.size(1),
          .key_heads = inputs.key.size(1),
          .head_size = inputs.query.size(2),
          .scale = static_cast<float>(scale_of(inputs)),
          .window = inputs.scores.window,
          .soft_cap = static_cast<float>(inputs.scores.soft_cap)};
}

// Calls f(begin, end) for the parts of small_heads().
template <class F>
void for_parts(const AttentionInputs& inputs, const F& f) {
  const int64_t tokens = inputs.documents.longest();
  for_rows(inputs.documents.count() * inputs.key.size(1), tokens * tokens, f);
}

AttentionOutput attention_of_small_heads(const AttentionInputs& given) {
  const AttentionInputs inputs = with_dense_heads(given);
  const at::Tensor& query = inputs.query;
  AttentionOutput output{
      at::empty({query.size(0), query.size(1) * query.size(2)}, query.options()),
      at::empty({query.size(0) * query.size(1)}, query.options().dtype(at::kFloat))};
  with_dtype(query, [&](auto type) {
    using T = decltype(type);
    const SmallHeads<T> heads = small_heads<T>(inputs);
    for_parts(inputs, [&](int64_t begin, int64_t end) {
      kernels<T>().small_heads(heads, mutable_data<T>(output.mixed_TD),
                               mutable_data<float>(output.log_sums), begin, end);
    });
  });
  return output;
}

AttentionGradients small_heads_backward(const AttentionInputs& given, const at::Tensor& log_sums,
                                        const at::Tensor& grad_mixed_TD) {
  const AttentionInputs inputs = with_dense_heads(given);
  const at::Tensor grad_mixed = grad_mixed_TD.contiguous();
  const auto room_like = [](const at::Tensor& tensor) {
    return at::empty(tensor.sizes(), tensor.options());
  };
  AttentionGradients grads{room_like(inputs.query), room_like(inputs.key), room_like(inputs.value)};
  with_dtype(inputs.query, [&](auto type) {
    using T = decltype(type);
    const SmallHeads<T> heads = small_heads<T>(inputs);
    const SmallHeadGradients<T> places{mutable_data<T>(grads.query), mutable_data<T>(grads.key),
                                       mutable_data<T>(grads.value)};
    for_parts(inputs, [&](int64_t begin, int64_t end) {
      kernels<T>().small_heads_backward(heads, data<T>(grad_mixed), data<float>(log_sums), places,
                                        begin, end);
    });
  });
  return grads;
}

AttentionOutput attention(const AttentionInputs& inputs) {
  if (has_small_heads(inputs)) {
    return attention_of_small_heads(inputs);
  }
  AttentionOutput output = blockwise_attention(kSteps, for_products(inputs));
  output.mixed_TD = output.mixed_TD.to(inputs.query.scalar_type());
  return output;
}

AttentionGradients attention_backward(const AttentionInputs& inputs, const AttentionOutput& output,
                                      const at::Tensor& grad_mixed_TD) {
  if (has_small_heads(inputs)) {
    return small_heads_backward(inputs, output.log_sums, grad_mixed_TD);
  }
  const AttentionGradients grads = blockwise_attention_backward(
      kSteps, for_products(inputs), output.log_sums, for_products(grad_mixed_TD));
  const auto dtype = inputs.query.scalar_type();
  return {grads.query.to(dtype), grads.key.to(dtype), grads.value.to(dtype)};
}

// Keys that lie one behind the other within a head, as in a cache.
bool has_dense_keys(const at::Tensor& cached) {
  return cached.stride(3) == 1 && cached.stride(2) == cached.size(3);
}

at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& positions, const at::Tensor& slopes,
                            const AttentionScores& scores) {
  const at::Tensor queries = query.contiguous();
  const bool as_they_are = has_dense_keys(key) && key.strides() == value.strides();
  const at::Tensor keys = as_they_are ? key : key.contiguous();
  const at::Tensor values = as_they_are ? value : value.contiguous();
  const at::Tensor mixed =
      at::empty({query.size(0), query.size(1) * query.size(2)}, query.options());
  with_dtype(query, [&](auto type) {
    using T = decltype(type);
    const DecodeRows<T> rows{.query = data<T>(queries),
                             .keys = keys.const_data_ptr<T>(),
                             .values = values.const_data_ptr<T>(),
                             .positions = data<int64_t>(positions),
                             .slopes = data<float>(slopes),
                             .columns = key.size(2),
                             .heads = query.size(1),
                             .key_heads = key.size(1),
                             .head_size = query.size(2),
                             .text_stride = keys.stride(0),
                             .key_head_stride = keys.stride(1),
                             .scale = static_cast<float>(scale_of(query, scores)),
                             .window = scores.window,
                             .soft_cap = static_cast<float>(scores.soft_cap)};
    for_rows(query.size(0) * key.size(1), key.size(2) * query.size(2),
             [&](int64_t begin, int64_t end) {
               kernels<T>().decode_attention(rows, mutable_data<T>(mixed), begin, end);
             });
  });
  return mixed;
}

}  // namespace

void add_attention(Backend& backend) {
  backend.attention = &attention;
  backend.attention_backward = &attention_backward;
  backend.decode_attention = &decode_attention;
}

}  // namespace sherd::ops::cpu
