// Causal softmax of attention scores, forwards and backwards.

#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/table.h"

namespace sherd::ops::cpu {
namespace {

// How a row's scores are made of products.
struct RowRule {
  float scale, slope, cap;
};

// cap(scale × score) − slope × distance to the query, of the keys from `first` on. Beyond the last
// key the numbers mean nothing.
template <bool kIsCapped, class T>
inline Pair biased(const T* scores, int64_t first, int64_t count, RowRule rule, int64_t visible) {
  const Pair scaled = load(scores + first, count) * Vec(rule.scale);
  if constexpr (kIsCapped) {  // and has no slope
    return each(scaled, [&](const Vec& x) { return soft_capped(x, rule.cap); });
  }
  if (rule.slope == 0.0F) {
    return scaled;
  }
  return fma(counting(static_cast<float>(first - visible + 1)), broadcast(rule.slope), scaled);
}

template <class T>
inline void clear(T* values, int64_t begin, int64_t end) {
  std::fill(values + begin, values + end, T(0.0F));
}

template <bool kIsCapped, class T>
float softmax_row(T* scores, int64_t visible, RowRule rule, float* wide) {
  Pair most = broadcast(-std::numeric_limits<float>::infinity());
  for_each_step(visible, [&](int64_t i, int64_t count) {
    const Pair x = biased<kIsCapped>(scores, i, count, rule, visible);
    store(wide + i, x);
    most = each(keep(x, most, count), most,
                [](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); });
  });
  const float peak = largest(most);
  Pair total = broadcast(0.0F);
  const Pair shift = broadcast(peak);
  for_each_step(visible, [&](int64_t i, int64_t count) {
    const Pair e = each(load(wide + i) - shift, exponential);
    store(wide + i, e);
    total = total + keep(e, broadcast(0.0F), count);
  });
  const float sum_of_row = sum(total);
  const Vec inverse(1.0F / sum_of_row);
  for_each_step(visible, [&](int64_t i, int64_t count) {
    store(scores + i, load(wide + i) * inverse, count);
  });
  return peak + std::log(sum_of_row);
}

RowRule rule_of(const ScoreRows& rows, int64_t row) {
  return {rows.scale, rows.slope(row), rows.soft_cap};
}

template <bool kIsCapped, class T>
void softmax_rows(const ScoreRows& rows, T* scores, float* log_sums, int64_t begin, int64_t end) {
  std::vector<float> wide(static_cast<size_t>(rows.columns + kStep));
  for (int64_t r = begin; r < end; ++r) {
    T* row = scores + r * rows.columns;
    const int64_t hidden = rows.hidden(r), visible = rows.visible(r);
    clear(row, 0, hidden);
    log_sums[r] =
        softmax_row<kIsCapped>(row + hidden, visible - hidden, rule_of(rows, r), wide.data());
    clear(row, visible, rows.columns);
  }
}

template <class T>
void causal_softmax(const ScoreRows& rows, T* scores, float* log_sums, int64_t begin, int64_t end) {
  (rows.soft_cap == 0 ? &softmax_rows<false, T> : &softmax_rows<true, T>)(rows, scores, log_sums,
                                                                          begin, end);
}

// With probabilities p and their gradient g: the gradient of a capped score is p (g − Σ p g).
// `room` holds two rows.
template <bool kIsCapped, class T>
void softmax_backward_row(T* scores, T* grad, int64_t visible, RowRule rule, float log_sum,
                          std::vector<float>& room) {
  float* const wide = room.data();
  float* const slopes = wide + room.size() / 2;  // of the cap
  Pair dots = broadcast(0.0F);
  for_each_step(visible, [&](int64_t i, int64_t count) {
    const Pair x = biased<kIsCapped>(scores, i, count, rule, visible);
    if constexpr (kIsCapped) {
      store(slopes + i, each(x, [&](const Vec& of) { return slope_of_cap(of, rule.cap); }));
    }
    const Pair p = keep(each(x - broadcast(log_sum), exponential), broadcast(0.0F), count);
    store(wide + i, p);
    dots = fma(p, load(grad + i, count), dots);
    store(scores + i, p, count);
  });
  const Pair dot = broadcast(sum(dots));
  for_each_step(visible, [&](int64_t i, int64_t count) {
    Pair g = load(wide + i) * (load(grad + i, count) - dot) * Vec(rule.scale);
    if constexpr (kIsCapped) {
      g = g * load(slopes + i);
    }
    store(grad + i, g, count);
  });
}

template <bool kIsCapped, class T>
void softmax_backward_rows(const ScoreRows& rows, T* scores, T* grad, const float* log_sums,
                           int64_t begin, int64_t end) {
  std::vector<float> room(static_cast<size_t>(2 * (rows.columns + kStep)));
  for (int64_t r = begin; r < end; ++r) {
    T* row = scores + r * rows.columns;
    T* grad_row = grad + r * rows.columns;
    const int64_t hidden = rows.hidden(r), visible = rows.visible(r);
    clear(row, 0, hidden);
    clear(grad_row, 0, hidden);
    softmax_backward_row<kIsCapped>(row + hidden, grad_row + hidden, visible - hidden,
                                    rule_of(rows, r), log_sums[r], room);
    clear(row, visible, rows.columns);
    clear(grad_row, visible, rows.columns);
  }
}

template <class T>
void causal_softmax_backward(const ScoreRows& rows, T* scores, T* grad, const float* log_sums,
                             int64_t begin, int64_t end) {
  (rows.soft_cap == 0 ? &softmax_backward_rows<false, T>
                      : &softmax_backward_rows<true, T>)(rows, scores, grad, log_sums, begin, end);
}

}  // namespace

namespace CPU_CAPABILITY {

template <class T>
void add_softmax(Kernels<T>& table) {
  table.causal_softmax = &causal_softmax<T>;
  table.causal_softmax_backward = &causal_softmax_backward<T>;
}
template void add_softmax(Kernels<float>& table);
template void add_softmax(Kernels<BFloat16>& table);
template void add_softmax(Kernels<Half>& table);

}  // namespace CPU_CAPABILITY
}  // namespace sherd::ops::cpu
