// Cross-entropy over rows of logits. A row of a large vocabulary does not fit the first-level
// cache, so it is read once: block by block, with the largest so far.

#include <cmath>
#include <limits>

#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/table.h"

namespace sherd::ops::cpu {
namespace {

constexpr int64_t kBlock = 4096;

template <class T>
float largest_of(const T* values, int64_t numel) {
  Pair most = broadcast(-std::numeric_limits<float>::infinity());
  for_each_step(numel, [&](int64_t i, int64_t count) {
    most = each(keep(load(values + i, count), most, count), most,
                [](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); });
  });
  return largest(most);
}

template <class T>
float sum_of_exponentials(const T* values, int64_t numel, float shift) {
  Pair total = broadcast(0.0F);
  for_each_step(numel, [&](int64_t i, int64_t count) {
    const Pair e = each(load(values + i, count) - broadcast(shift), exponential);
    total = total + keep(e, broadcast(0.0F), count);
  });
  return sum(total);
}

template <class T>
float log_sum_of_exponentials(const T* values, int64_t numel) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  float peak = kMasked;
  double total = 0;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t size = std::min(kBlock, numel - begin);
    const float here = largest_of(values + begin, size);
    if (here == kMasked) {
      continue;  // adds nothing: −∞ − (−∞) would be NaN
    }
    if (!(here <= peak)) {  // larger, or not a number
      total *= std::exp(static_cast<double>(peak) - here);
      peak = here;
    }
    total += sum_of_exponentials(values + begin, size, peak);
  }
  return static_cast<float>(peak + std::log(total));
}

template <class T>
void cross_entropy(const T* logits, const int64_t* targets, int64_t columns, float* losses,
                   float* log_sums, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* row = logits + r * columns;
    log_sums[r] = log_sum_of_exponentials(row, columns);
    losses[r] = log_sums[r] - static_cast<float>(row[targets[r]]);
  }
}

template <class T>
void cross_entropy_backward(T* logits, const int64_t* targets, const float* log_sums, float scale,
                            int64_t columns, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T* row = logits + r * columns;
    const float of_target = static_cast<float>(row[targets[r]]);
    const Pair log_sum = broadcast(log_sums[r]);
    for_each_step(columns, [&](int64_t i, int64_t count) {
      store(row + i, each(load(row + i, count) - log_sum, exponential) * Vec(scale), count);
    });
    row[targets[r]] = T((std::exp(of_target - log_sums[r]) - 1.0F) * scale);
  }
}

}  // namespace

namespace CPU_CAPABILITY {

template <class T>
void add_cross_entropy(Kernels<T>& table) {
  table.cross_entropy = &cross_entropy<T>;
  table.cross_entropy_backward = &cross_entropy_backward<T>;
}
template void add_cross_entropy(Kernels<float>& table);
template void add_cross_entropy(Kernels<BFloat16>& table);
template void add_cross_entropy(Kernels<Half>& table);

}  // namespace CPU_CAPABILITY
}  // namespace sherd::ops::cpu
