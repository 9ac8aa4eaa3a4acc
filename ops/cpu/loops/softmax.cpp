// Causal softmax of attention scores, forwards and backwards.

#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/table.h"

namespace sherd::ops::cpu {
namespace {

// scale × score − slope × distance to the query, of the keys from `first` on. Beyond the last key
// the numbers mean nothing.
template <class T>
inline Pair biased(const T* scores, int64_t first, int64_t count, float scale, float slope,
                   int64_t visible) {
  const Pair scaled = load(scores + first, count) * Vec(scale);
  if (slope == 0.0F) {
    return scaled;
  }
  return fma(counting(static_cast<float>(first - visible + 1)), broadcast(slope), scaled);
}

template <class T>
inline void clear(T* values, int64_t begin, int64_t end) {
  std::fill(values + begin, values + end, T(0.0F));
}

template <class T>
float softmax_row(T* scores, int64_t visible, float scale, float slope, float* wide) {
  Pair most = broadcast(-std::numeric_limits<float>::infinity());
  for_each_step(visible, [&](int64_t i, int64_t count) {
    const Pair x = biased(scores, i, count, scale, slope, visible);
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

template <class T>
void causal_softmax(const ScoreRows& rows, T* scores, float* log_sums, int64_t begin, int64_t end) {
  std::vector<float> wide(static_cast<size_t>(rows.columns + kStep));
  for (int64_t r = begin; r < end; ++r) {
    T* row = scores + r * rows.columns;
    const int64_t visible = rows.visible(r);
    log_sums[r] = softmax_row(row, visible, rows.scale, rows.slope(r), wide.data());
    clear(row, visible, rows.columns);
  }
}

// With probabilities p and their gradient g: the gradient of a scaled score is p (g − Σ p g).
template <class T>
void softmax_backward_row(T* scores, T* grad, int64_t visible, float scale, float slope,
                          float log_sum, float* wide) {
  Pair dots = broadcast(0.0F);
  for_each_step(visible, [&](int64_t i, int64_t count) {
    const Pair p = keep(
        each(biased(scores, i, count, scale, slope, visible) - broadcast(log_sum), exponential),
        broadcast(0.0F), count);
    store(wide + i, p);
    dots = fma(p, load(grad + i, count), dots);
    store(scores + i, p, count);
  });
  const Pair dot = broadcast(sum(dots));
  for_each_step(visible, [&](int64_t i, int64_t count) {
    const Pair g = load(wide + i) * (load(grad + i, count) - dot) * Vec(scale);
    store(grad + i, g, count);
  });
}

template <class T>
void causal_softmax_backward(const ScoreRows& rows, T* scores, T* grad, const float* log_sums,
                             int64_t begin, int64_t end) {
  std::vector<float> wide(static_cast<size_t>(rows.columns + kStep));
  for (int64_t r = begin; r < end; ++r) {
    T* row = scores + r * rows.columns;
    T* grad_row = grad + r * rows.columns;
    const int64_t visible = rows.visible(r);
    softmax_backward_row(row, grad_row, visible, rows.scale, rows.slope(r), log_sums[r],
                         wide.data());
    clear(row, visible, rows.columns);
    clear(grad_row, visible, rows.columns);
  }
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
