#include "ops/shared/blockwise_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "ops/shared/gradient.h"

// Shapes: N heads, K key heads, T tokens, H head size. Documents of equal length that lie side by
// side are computed together: B of them with L tokens; M = B × K, the matrices of a batched
// product; R = N ÷ K heads that share one; n queries of a block; S keys that a block sees.

namespace sherd::ops {
namespace {

constexpr int64_t kBlockQueries = 128;

// Neighbouring documents of equal length.
struct Run {
  int64_t begin = 0;  // token
  int64_t documents = 0;
  int64_t length = 0;

  // Their part of what is of each token [T, …]: [B, L, …], a view
  [[nodiscard]] at::Tensor of(const at::Tensor& tokens) const {
    return tokens.narrow(0, begin, documents * length).unflatten(0, {documents, length});
  }
};

std::vector<Run> runs_of(const Documents& documents) {
  std::vector<Run> runs;
  for (int64_t d = 0; d < documents.count(); ++d) {
    if (runs.empty() || runs.back().length != documents.length(d)) {
      runs.push_back({documents.begin(d), 0, documents.length(d)});
    }
    runs.back().documents += 1;
  }
  return runs;
}

// [B, L, K, H] -> [M, L, H], contiguous: products read it once for every block
at::Tensor as_matrices(const at::Tensor& heads) {
  return heads.transpose(1, 2).reshape({-1, heads.size(1), heads.size(3)}).contiguous();
}

// The walk over blocks of a run's queries, with memory that all of them use.
class Blocks {
 public:
  Blocks(const AttentionInputs& inputs, const Run& run)
      : run_(run),
        key_heads_(inputs.key.size(1)),
        group_(inputs.query.size(1) / key_heads_),
        matrices_(run.documents * key_heads_),
        heads_(inputs.query.size(1)),
        head_size_(inputs.query.size(2)),
        scale_(scale_of(inputs)),
        options_(inputs.query.options()),
        slopes_(inputs.slopes),
        scores_(inputs.scores) {}

  // The run's queries, or what has their shape [T, N, H], by the matrix that they share:
  // [B, K, R, L, H], a view
  [[nodiscard]] at::Tensor by_matrix(const at::Tensor& queries) const {
    return run_.of(queries).unflatten(2, {key_heads_, group_}).permute({0, 2, 3, 1, 4});
  }
  // A block of it: [M, R × n, H]
  [[nodiscard]] at::Tensor take(const at::Tensor& queries, int64_t begin, int64_t end) const {
    return queries.slice(3, begin, end).reshape({matrices_, group_ * (end - begin), head_size_});
  }
  // The run's part of a number a query, in the order of its blocks' rows: [M × R, L], a view
  [[nodiscard]] at::Tensor numbers(const at::Tensor& all) const {
    return all.narrow(0, run_.begin * heads_, run_.documents * run_.length * heads_)
        .view({matrices_ * group_, run_.length});
  }
  [[nodiscard]] at::Tensor room() const {
    const int64_t queries = std::min(kBlockQueries, run_.length);
    const int64_t keys = scores_.window == 0
                             ? run_.length
                             : std::min(run_.length, scores_.window - 1 + kBlockQueries);
    return at::empty({matrices_ * group_ * queries * keys}, options_);
  }
  // The part of such room that a block's scores take: [M, R × n, S]
  [[nodiscard]] at::Tensor scores(const at::Tensor& room, int64_t begin, int64_t end) const {
    const int64_t queries = end - begin, keys = end - scores_.first_seen(begin);
    return room.narrow(0, 0, matrices_ * group_ * queries * keys)
        .view({matrices_, group_ * queries, keys});
  }
  // What a block reads, or adds to, of keys or values: [M, S, H], a view
  [[nodiscard]] at::Tensor seen(const at::Tensor& keys, int64_t begin, int64_t end) const {
    const int64_t first = scores_.first_seen(begin);
    return keys.narrow(1, first, end - first);
  }
  [[nodiscard]] ScoreBlock block(int64_t begin, int64_t end) const {
    return {begin, end - begin, heads_, scale_, slopes_, scores_.first_seen(begin), scores_};
  }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (int64_t begin = 0; begin < run_.length && matrices_ > 0; begin += kBlockQueries) {
      visit(begin, std::min(begin + kBlockQueries, run_.length));
    }
  }

 private:
  Run run_;
  int64_t key_heads_, group_, matrices_, heads_, head_size_;
  double scale_;
  at::TensorOptions options_;
  at::Tensor slopes_;
  AttentionScores scores_;
};

// a · b in memory of its own: [M, m, n]
at::Tensor product_of(const AttentionSteps& steps, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  steps.bmm(out, a, b);
  return out;
}

// A block's part of numbers a query: [M × R × n], contiguous
at::Tensor block_of(const at::Tensor& numbers, int64_t begin, int64_t end) {
  return numbers.slice(1, begin, end).reshape({-1}).contiguous();  // of one query it is a view
}

void attend(const AttentionSteps& steps, const AttentionInputs& inputs, const Run& run,
            const AttentionOutput& output) {
  const Blocks blocks(inputs, run);
  const at::Tensor queries = blocks.by_matrix(inputs.query);
  const at::Tensor keys = as_matrices(run.of(inputs.key));
  const at::Tensor values = as_matrices(run.of(inputs.value));
  const at::Tensor places = blocks.by_matrix(output.mixed_TD.view(inputs.query.sizes()));
  const at::Tensor all_log_sums = blocks.numbers(output.log_sums);
  const at::Tensor room = blocks.room();
  blocks.for_each([&](int64_t begin, int64_t end) {
    at::Tensor scores = blocks.scores(room, begin, end);
    steps.bmm(scores, blocks.take(queries, begin, end),
              blocks.seen(keys, begin, end).transpose(1, 2));
    const at::Tensor kept = all_log_sums.slice(1, begin, end);
    at::Tensor log_sums = at::empty({kept.numel()}, kept.options());
    steps.softmax(scores, log_sums, blocks.block(begin, end));
    kept.copy_(log_sums.view(kept.sizes()));
    const at::Tensor place = places.slice(3, begin, end);
    place.copy_(product_of(steps, scores, blocks.seen(values, begin, end)).view(place.sizes()));
  });
}

void attend_backward(const AttentionSteps& steps, const AttentionInputs& inputs, const Run& run,
                     const at::Tensor& log_sums, const at::Tensor& grad_mixed_TD,
                     const AttentionGradients& gradients) {
  const Blocks blocks(inputs, run);
  const at::Tensor queries = blocks.by_matrix(inputs.query);
  const at::Tensor keys = as_matrices(run.of(inputs.key));
  const at::Tensor values = as_matrices(run.of(inputs.value));
  const at::Tensor grad_mixed = blocks.by_matrix(grad_mixed_TD.view(inputs.query.sizes()));
  const at::Tensor grad_queries = blocks.by_matrix(gradients.query);
  // Summed over blocks of queries, which 16 bits would lose bits by.
  const at::Tensor grad_keys = at::zeros(keys.sizes(), wide_options(keys));
  const at::Tensor grad_values = at::zeros(keys.sizes(), wide_options(keys));
  const at::Tensor all_log_sums = blocks.numbers(log_sums);
  const at::Tensor room = blocks.room();
  const at::Tensor grad_room = blocks.room();
  blocks.for_each([&](int64_t begin, int64_t end) {
    const at::Tensor block_queries = blocks.take(queries, begin, end);
    const at::Tensor block_grad = blocks.take(grad_mixed, begin, end);
    const at::Tensor seen = blocks.seen(keys, begin, end);
    at::Tensor scores = blocks.scores(room, begin, end);
    at::Tensor grad_scores = blocks.scores(grad_room, begin, end);
    steps.bmm(scores, block_queries, seen.transpose(1, 2));
    steps.bmm(grad_scores, block_grad, blocks.seen(values, begin, end).transpose(1, 2));
    steps.softmax_backward(scores, grad_scores, block_of(all_log_sums, begin, end),
                           blocks.block(begin, end));
    blocks.seen(grad_values, begin, end)
        .add_(product_of(steps, scores.transpose(1, 2), block_grad));
    blocks.seen(grad_keys, begin, end)
        .add_(product_of(steps, grad_scores.transpose(1, 2), block_queries));
    const at::Tensor place = grad_queries.slice(3, begin, end);
    place.copy_(product_of(steps, grad_scores, seen).view(place.sizes()));
  });
  const auto deliver = [&](const at::Tensor& sum, const at::Tensor& gradient) {
    const at::Tensor place = run.of(gradient).transpose(1, 2);  // [B, K, L, H]
    place.copy_(sum.view(place.sizes()));
  };
  deliver(grad_keys, gradients.key);
  deliver(grad_values, gradients.value);
}

}  // namespace

double scale_of(const at::Tensor& query, const AttentionScores& scores) {
  return scores.scale == 0 ? 1 / std::sqrt(static_cast<double>(query.size(-1))) : scores.scale;
}

AttentionOutput blockwise_attention(const AttentionSteps& steps, const AttentionInputs& inputs) {
  const at::Tensor& query = inputs.query;
  const int64_t heads = query.size(1);
  const AttentionOutput output{at::empty({query.size(0), heads * query.size(2)}, query.options()),
                               at::empty({query.size(0) * heads}, wide_options(query))};
  for (const Run& run : runs_of(inputs.documents)) {
    attend(steps, inputs, run, output);
  }
  return output;
}

AttentionGradients blockwise_attention_backward(const AttentionSteps& steps,
                                                const AttentionInputs& inputs,
                                                const at::Tensor& log_sums,
                                                const at::Tensor& grad_mixed_TD) {
  const auto room_like = [](const at::Tensor& tensor) {
    return at::empty(tensor.sizes(), tensor.options());
  };
  const AttentionGradients gradients{room_like(inputs.query), room_like(inputs.key),
                                     room_like(inputs.value)};
  const at::Tensor grad_mixed = grad_mixed_TD.contiguous();
  for (const Run& run : runs_of(inputs.documents)) {
    attend_backward(steps, inputs, run, log_sums, grad_mixed, gradients);
  }
  return gradients;
}

at::Tensor attention_of_one_query(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& positions,
                                  const at::Tensor& slopes, const AttentionScores& rule) {
  const int64_t batch = query.size(0), heads = query.size(1), head_size = query.size(2);
  const int64_t key_heads = key.size(1), length = key.size(2);
  const at::Tensor queries = query.reshape({batch * key_heads, heads / key_heads, head_size});
  const auto matrices = [&](const at::Tensor& cached) {
    return cached.reshape({-1, length, head_size});
  };
  at::Tensor scores = at::bmm(queries, matrices(key).transpose(1, 2)).mul_(scale_of(query, rule));
  if (rule.soft_cap != 0) {
    scores = scores.to(statistics_dtype(scores.scalar_type()));
    scores = scores.div_(rule.soft_cap).tanh_().mul_(rule.soft_cap);
  }
  if (slopes.defined()) {
    scores = scores.to(statistics_dtype(scores.scalar_type()));
    const at::Tensor distances =
        at::arange(length, scores.options()) - positions.view({-1, 1, 1});  // [B, 1, S]
    scores.view({batch, heads, 1, length}).add_(slopes.view({-1, 1, 1}) * distances.unsqueeze(-3));
  }
  const at::Tensor keys = at::arange(length, positions.options());
  at::Tensor hidden = keys > positions.unsqueeze(1);  // [B, S]
  if (rule.window != 0) {
    hidden.logical_or_(keys <= positions.unsqueeze(1) - rule.window);
  }
  scores.view({batch, heads, length}).masked_fill_(hidden.unsqueeze(1), kMasked);
  const at::Tensor probabilities =
      at::_softmax(scores, -1, /*half_to_float=*/false).to(query.scalar_type());
  return at::bmm(probabilities, matrices(value)).view({batch, heads * head_size});
}

}  // namespace sherd::ops
