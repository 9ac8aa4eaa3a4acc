// Causal attention of heads so small that batched products would spend their time on scores in
// memory and on copies into the layouts that they want: fused, one block of queries at a time.
// Idea: FlashAttention, arXiv:2205.14135, whose statistics a row are kept.
//
// A vector holds one number of each of a block's queries, so that softmax needs no sums across
// lanes. Rows and columns: `rows` [tokens][width] are a head's vectors one behind the other, with
// zeros up to `width`; `columns` [width][kLanes] the same of a block's queries, turned; `weights`
// [keys][kLanes] a number of each key and query. Where a vector holds numbers of one head, rows
// are `whole` wide instead, a multiple of kLanes.

#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/table.h"

namespace sherd::ops::cpu {
namespace {

constexpr int64_t kChunk = 8;  // of a head's numbers, which registers hold for a block

int64_t multiple_of(int64_t unit, int64_t head_size) {
  return (head_size + unit - 1) / unit * unit;
}

struct Widths {
  explicit Widths(int64_t head_size)
      : width(multiple_of(kChunk, head_size)),
        whole(multiple_of(std::max(kChunk, kLanes), width)) {}
  int64_t width, whole;
};

// weights = columnsᵀ · rowsᵀ
void dot(const float* columns, const float* rows, int64_t keys, int64_t width, float* weights) {
  for (int64_t c = 0; c < width; c += kChunk) {
    Vec numbers[kChunk];
    for (int64_t i = 0; i < kChunk; ++i) {
      numbers[i] = Vec::loadu(columns + (c + i) * kLanes);
    }
    for (int64_t k = 0; k < keys; ++k) {
      const float* row = rows + k * width + c;
      Vec sum = c == 0 ? Vec(0.0F) : Vec::loadu(weights + k * kLanes);
      for (int64_t i = 0; i < kChunk; ++i) {
        sum = at::vec::fmadd(numbers[i], Vec(row[i]), sum);
      }
      sum.store(weights + k * kLanes);
    }
  }
}

// columns = Σ over keys of weights × rows
void mix(const float* weights, const float* rows, int64_t keys, int64_t width, float* columns) {
  for (int64_t c = 0; c < width; c += kChunk) {
    Vec sums[kChunk];
    std::fill(sums, sums + kChunk, Vec(0.0F));
    for (int64_t k = 0; k < keys; ++k) {
      const float* row = rows + k * width + c;
      const Vec weight = Vec::loadu(weights + k * kLanes);
      for (int64_t i = 0; i < kChunk; ++i) {
        sums[i] = at::vec::fmadd(weight, Vec(row[i]), sums[i]);
      }
    }
    for (int64_t i = 0; i < kChunk; ++i) {
      sums[i].store(columns + (c + i) * kLanes);
    }
  }
}

// sums [keys][whole] += Σ over queries of weights × their rows
void add_weighted(const float* weights, const float* queries, int64_t keys, int64_t whole,
                  float* sums) {
  for (int64_t i = 0; i < whole; i += kLanes) {
    Vec numbers[kLanes];
    for (int64_t q = 0; q < kLanes; ++q) {
      numbers[q] = Vec::loadu(queries + q * whole + i);
    }
    for (int64_t k = 0; k < keys; ++k) {
      Vec sum = Vec::loadu(sums + k * whole + i);
      for (int64_t q = 0; q < kLanes; ++q) {
        sum = at::vec::fmadd(Vec(weights[k * kLanes + q]), numbers[q], sum);
      }
      sum.store(sums + k * whole + i);
    }
  }
}

// A head's vectors of `count` tokens as rows.
template <class T>
void take(const HeadVectors<T>& from, int64_t token, int64_t head, int64_t count, int64_t head_size,
          int64_t width, float* rows) {
  for (int64_t t = 0; t < count; ++t) {
    const T* vector = from.of(token + t, head);
    float* row = rows + t * width;
    for (int64_t i = 0; i < head_size; ++i) {
      row[i] = static_cast<float>(vector[i]);
    }
    std::fill(row + head_size, row + width, 0.0F);
  }
}

void turn(const float* rows, const Widths& widths, float* columns) {
  for (int64_t q = 0; q < kLanes; ++q) {
    for (int64_t i = 0; i < widths.width; ++i) {
      columns[i * kLanes + q] = rows[q * widths.whole + i];
    }
  }
}

// Some of a head's queries, as many as a vector has lanes; what is behind the document's last is
// zero.
struct QueryBlock {
  explicit QueryBlock(const Widths& widths)
      : rows(static_cast<size_t>(kLanes * widths.whole)),
        columns(static_cast<size_t>(kLanes * widths.width)) {}

  template <class T>
  void take_from(const HeadVectors<T>& from, int64_t token, int64_t head, int64_t count,
                 int64_t head_size, const Widths& widths) {
    std::fill(rows.begin(), rows.end(), 0.0F);
    take(from, token, head, count, head_size, widths.whole, rows.data());
    turn(rows.data(), widths, columns.data());
  }
  std::vector<float> rows;     // [kLanes][whole]
  std::vector<float> columns;  // [width][kLanes]
};

// How a head's scores are made of dot products, and which keys a query sees.
struct HeadRule {
  float scale, slope;
  int64_t window;  // 0: no limit
  float cap;       // 0: none
  [[nodiscard]] int64_t first_key(int64_t first_query) const {
    return window == 0 ? 0 : std::max<int64_t>(first_query - window + 1, 0);
  }
};

// The scores of a block of queries, the first of which is `first`, counted as keys are. kIsLimited:
// there is a window or a cap.
template <bool kIsLimited>
class BlockScores {
 public:
  BlockScores(int64_t first, const HeadRule& rule)
      : first_(first),
        first_seen_by_all_(rule.window == 0 ? 0 : first + kLanes - rule.window),
        positions_(Vec::arange(static_cast<float>(first), 1.0F)),
        scale_(rule.scale),
        slope_(rule.slope),
        has_slope_(rule.slope != 0.0F),
        window_(rule.window),
        cap_(rule.cap) {}

  [[nodiscard]] Vec biased(const float* weights, int64_t key) const {
    const Vec scaled = Vec::loadu(weights + key * kLanes) * scale_;
    if (kIsLimited && cap_ != 0.0F) {  // and has no slope
      return soft_capped(scaled, cap_);
    }
    return has_slope_ ? at::vec::fmadd(Vec(static_cast<float>(key)) - positions_, slope_, scaled)
                      : scaled;
  }
  // `values` of the queries that see the key, `other` of the rest.
  [[nodiscard]] Vec seen(const Vec& values, float other, int64_t key) const {
    const Vec inside =
        key <= first_ ? values
                      : Vec::blendv(Vec(other), values, positions_ >= Vec(static_cast<float>(key)));
    return !kIsLimited || key >= first_seen_by_all_
               ? inside
               : Vec::blendv(Vec(other), inside,
                             positions_ < Vec(static_cast<float>(key + window_)));
  }
  [[nodiscard]] const Vec& scale() const { return scale_; }
  // What the gradient of a score is multiplied by for that of its dot product.
  [[nodiscard]] Vec slope_of(const Vec& score) const {
    return cap_ == 0.0F ? scale_ : scale_ * slope_of_cap(score, cap_);
  }

 private:
  int64_t first_, first_seen_by_all_;
  Vec positions_, scale_, slope_;
  bool has_slope_;
  int64_t window_;
  float cap_;
};

// weights: dot products become exponentials of scores. Returns the log of each query's sum of them
// in `log_sums`, and 1 ÷ the sum of what `weights` has.
template <class Scores>
Vec exponentials(const Scores& scores, int64_t keys, float* weights, float* log_sums) {
  Vec most(-std::numeric_limits<float>::infinity());
  for (int64_t k = 0; k < keys; ++k) {
    const Vec score =
        scores.seen(scores.biased(weights, k), -std::numeric_limits<float>::infinity(), k);
    score.store(weights + k * kLanes);
    most = at::vec::maximum(most, score);
  }
  Vec total(0.0F);
  for (int64_t k = 0; k < keys; ++k) {
    const Vec e = scores.seen(exponential(Vec::loadu(weights + k * kLanes) - most), 0.0F, k);
    e.store(weights + k * kLanes);
    total = total + e;
  }
  (most + total.log()).store(log_sums);
  return Vec(1.0F) / total;
}

// weights: dot products become probabilities; grad_weights: their gradients become those of the dot
// products. `slopes` is room for as much where there is a limit.
template <bool kIsLimited>
void gradients(const BlockScores<kIsLimited>& scores, int64_t keys, const float* log_sums,
               float* weights, float* grad_weights, float* slopes) {
  const Vec shift = Vec::loadu(log_sums);
  Vec dots(0.0F);
  for (int64_t k = 0; k < keys; ++k) {
    const Vec score = scores.biased(weights, k);
    if constexpr (kIsLimited) {
      scores.slope_of(score).store(slopes + k * kLanes);
    }
    const Vec p = scores.seen(exponential(score - shift), 0.0F, k);
    p.store(weights + k * kLanes);
    dots = at::vec::fmadd(p, scores.seen(Vec::loadu(grad_weights + k * kLanes), 0.0F, k), dots);
  }
  for (int64_t k = 0; k < keys; ++k) {
    const Vec slope = kIsLimited ? Vec::loadu(slopes + k * kLanes) : scores.scale();
    const Vec g =
        Vec::loadu(weights + k * kLanes) * (Vec::loadu(grad_weights + k * kLanes) - dots) * slope;
    scores.seen(g, 0.0F, k).store(grad_weights + k * kLanes);
  }
}

// The numbers of queries that lie in lanes, back into their rows.
template <class T>
void put_back(const float* columns, int64_t count, int64_t head_size, const Vec& times,
              int64_t stride, T* rows) {
  float factors[kLanes];
  times.store(factors);
  for (int64_t q = 0; q < count; ++q) {
    for (int64_t i = 0; i < head_size; ++i) {
      rows[q * stride + i] = static_cast<T>(columns[i * kLanes + q] * factors[q]);
    }
  }
}

// What is computed at a time: a document's heads that share a key head.
template <class T>
struct Part {
  Part(const SmallHeads<T>& of, int64_t number)
      : begin(of.bounds[number / of.key_heads]),
        tokens(of.bounds[number / of.key_heads + 1] - begin),
        key_head(number % of.key_heads),
        heads_a_key(of.heads / of.key_heads) {}
  [[nodiscard]] int64_t head(int64_t of_key) const { return key_head * heads_a_key + of_key; }

  int64_t begin, tokens, key_head, heads_a_key;
};

// A part's keys and values, and memory for one block of queries after the other.
struct Room {
  Room(int64_t most_tokens, const Widths& widths)
      : keys(static_cast<size_t>(most_tokens * widths.width)),
        values(keys.size()),
        weights(static_cast<size_t>(most_tokens * kLanes)),
        columns(static_cast<size_t>(kLanes * widths.width)),
        queries(widths) {}

  template <class T>
  void take_keys(const SmallHeads<T>& of, const Part<T>& part, int64_t width) {
    take(of.key, part.begin, part.key_head, part.tokens, of.head_size, width, keys.data());
    take(of.value, part.begin, part.key_head, part.tokens, of.head_size, width, values.data());
  }
  std::vector<float> keys, values, weights, columns;
  QueryBlock queries;
};

// Calls visit(head, first query, queries) for the blocks of a part.
template <class T, class Visit>
void for_each_block(const Part<T>& part, const Visit& visit) {
  for (int64_t h = 0; h < part.heads_a_key; ++h) {
    for (int64_t first = 0; first < part.tokens; first += kLanes) {
      visit(part.head(h), first, std::min(kLanes, part.tokens - first));
    }
  }
}

template <class T>
HeadRule rule_of(const SmallHeads<T>& of, int64_t head) {
  return {of.scale, of.slopes == nullptr ? 0.0F : of.slopes[head], of.window, of.soft_cap};
}

template <bool kIsLimited, class T>
void attend(const SmallHeads<T>& of, T* out, float* log_sums, int64_t begin, int64_t end) {
  const Widths widths(of.head_size);
  const int64_t width = widths.width, stride = of.heads * of.head_size;
  Room room(of.most_tokens, widths);
  for (int64_t number = begin; number < end; ++number) {
    const Part<T> part(of, number);
    room.take_keys(of, part, width);
    for_each_block(part, [&](int64_t head, int64_t first, int64_t count) {
      const HeadRule rule = rule_of(of, head);
      const int64_t first_key = rule.first_key(first), keys = first + count - first_key;
      const int64_t seen = first_key * width;  // where those rows begin
      room.queries.take_from(of.query, part.begin + first, head, count, of.head_size, widths);
      dot(room.queries.columns.data(), room.keys.data() + seen, keys, width, room.weights.data());
      float sums[kLanes];
      const BlockScores<kIsLimited> scores(first - first_key, rule);
      const Vec inverse = exponentials(scores, keys, room.weights.data(), sums);
      mix(room.weights.data(), room.values.data() + seen, keys, width, room.columns.data());
      put_back(room.columns.data(), count, of.head_size, inverse, stride,
               out + (part.begin + first) * stride + head * of.head_size);
      std::copy(sums, sums + count, log_sums + part.begin * of.heads + head * part.tokens + first);
    });
  }
}

template <class T>
void put_back_rows(const std::vector<float>& sums, const SmallHeads<T>& of, const Part<T>& part,
                   int64_t whole, T* out) {
  for (int64_t t = 0; t < part.tokens; ++t) {
    T* place = out + ((part.begin + t) * of.key_heads + part.key_head) * of.head_size;
    for (int64_t i = 0; i < of.head_size; ++i) {
      place[i] = static_cast<T>(sums[static_cast<size_t>(t * whole + i)]);
    }
  }
}

template <bool kIsLimited, class T>
void attend_backward(const SmallHeads<T>& of, const T* grad_out, const float* log_sums,
                     const SmallHeadGradients<T>& grads, int64_t begin, int64_t end) {
  const Widths widths(of.head_size);
  const int64_t width = widths.width, whole = widths.whole, stride = of.heads * of.head_size;
  const HeadVectors<T> grad_mixed{grad_out, stride, of.head_size};
  Room room(of.most_tokens, widths);
  QueryBlock grad_block(widths);
  std::vector<float> grad_weights(room.weights.size());
  std::vector<float> slopes(kIsLimited ? room.weights.size() : 0);
  std::vector<float> grad_keys(static_cast<size_t>(of.most_tokens * whole));
  std::vector<float> grad_values(grad_keys.size());
  for (int64_t number = begin; number < end; ++number) {
    const Part<T> part(of, number);
    room.take_keys(of, part, width);
    std::fill(grad_keys.begin(), grad_keys.end(), 0.0F);
    std::fill(grad_values.begin(), grad_values.end(), 0.0F);
    for_each_block(part, [&](int64_t head, int64_t first, int64_t count) {
      const HeadRule rule = rule_of(of, head);
      const int64_t first_key = rule.first_key(first), keys = first + count - first_key;
      const int64_t seen = first_key * width, token = part.begin + first;
      room.queries.take_from(of.query, token, head, count, of.head_size, widths);
      grad_block.take_from(grad_mixed, token, head, count, of.head_size, widths);
      dot(room.queries.columns.data(), room.keys.data() + seen, keys, width, room.weights.data());
      dot(grad_block.columns.data(), room.values.data() + seen, keys, width, grad_weights.data());
      float sums[kLanes] = {};
      const float* own = log_sums + part.begin * of.heads + head * part.tokens + first;
      std::copy(own, own + count, sums);
      gradients(BlockScores<kIsLimited>(first - first_key, rule), keys, sums, room.weights.data(),
                grad_weights.data(), slopes.data());
      mix(grad_weights.data(), room.keys.data() + seen, keys, width, room.columns.data());
      put_back(room.columns.data(), count, of.head_size, Vec(1.0F), stride,
               grads.query + token * stride + head * of.head_size);
      add_weighted(room.weights.data(), grad_block.rows.data(), keys, whole,
                   grad_values.data() + first_key * whole);
      add_weighted(grad_weights.data(), room.queries.rows.data(), keys, whole,
                   grad_keys.data() + first_key * whole);
    });
    put_back_rows(grad_keys, of, part, whole, grads.key);
    put_back_rows(grad_values, of, part, whole, grads.value);
  }
}

template <class T>
bool is_limited(const SmallHeads<T>& of) {
  return of.window != 0 || of.soft_cap != 0.0F;
}

template <class T>
void small_heads(const SmallHeads<T>& of, T* out, float* log_sums, int64_t begin, int64_t end) {
  (is_limited(of) ? &attend<true, T> : &attend<false, T>)(of, out, log_sums, begin, end);
}

template <class T>
void small_heads_backward(const SmallHeads<T>& of, const T* grad_out, const float* log_sums,
                          const SmallHeadGradients<T>& grads, int64_t begin, int64_t end) {
  (is_limited(of) ? &attend_backward<true, T> : &attend_backward<false, T>)(of, grad_out, log_sums,
                                                                            grads, begin, end);
}

}  // namespace

namespace CPU_CAPABILITY {

template <class T>
void add_small_heads(Kernels<T>& table) {
  table.small_heads = &small_heads<T>;
  table.small_heads_backward = &small_heads_backward<T>;
}
template void add_small_heads(Kernels<float>& table);
template void add_small_heads(Kernels<BFloat16>& table);
template void add_small_heads(Kernels<Half>& table);

}  // namespace CPU_CAPABILITY
}  // namespace sherd::ops::cpu
