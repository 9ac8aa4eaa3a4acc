// One query a head against cached keys: what generation computes for each token.

#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/table.h"

namespace sherd::ops::cpu {
namespace {

template <class T>
float dot(const T* a, const T* b, int64_t size) {
  Pair total = broadcast(0.0F);
  for_each_step(size, [&](int64_t i, int64_t count) {
    total = fma(load(a + i, count), load(b + i, count), total);
  });
  return sum(total);
}

// scores [visible] of the query become its softmax.
template <class T>
void probabilities(const DecodeRows<T>& rows, const T* query, const T* keys, int64_t visible,
                   float slope, float* scores) {
  float peak = -std::numeric_limits<float>::infinity();
  for (int64_t s = 0; s < visible; ++s) {
    const float scaled = rows.scale * dot(query, keys + s * rows.head_size, rows.head_size);
    scores[s] = rows.soft_cap == 0.0F
                    ? scaled + slope * static_cast<float>(s - visible + 1)
                    : rows.soft_cap * std::tanh(scaled / rows.soft_cap);  // which has no slope
    peak = std::max(peak, scores[s]);
  }
  Pair total = broadcast(0.0F);
  const Pair shift = broadcast(peak);
  for_each_step(visible, [&](int64_t i, int64_t count) {
    const Pair e = each(load(scores + i, count) - shift, exponential);
    store(scores + i, e, count);
    total = total + keep(e, broadcast(0.0F), count);
  });
  const Vec inverse(1.0F / sum(total));
  for_each_step(visible, [&](int64_t i, int64_t count) {
    store(scores + i, load(scores + i, count) * inverse, count);
  });
}

template <class T>
void mix(const DecodeRows<T>& rows, const float* weights, const T* values, int64_t visible,
         T* out) {
  for_each_step(rows.head_size, [&](int64_t i, int64_t count) {
    Pair mixed = broadcast(0.0F);
    for (int64_t s = 0; s < visible; ++s) {
      mixed = fma(broadcast(weights[s]), load(values + s * rows.head_size + i, count), mixed);
    }
    store(out + i, mixed, count);
  });
}

template <class T>
void decode_attention(const DecodeRows<T>& rows, T* out, int64_t begin, int64_t end) {
  std::vector<float> scores(static_cast<size_t>(rows.columns));
  const int64_t heads_a_key = rows.heads / rows.key_heads;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t text = r / rows.key_heads, key_head = r % rows.key_heads;
    const int64_t known = rows.positions[text] + 1;
    const int64_t visible = rows.window == 0 ? known : std::min(known, rows.window);
    const int64_t cached = text * rows.text_stride + key_head * rows.key_head_stride +
                           (known - visible) * rows.head_size;
    for (int64_t h = 0; h < heads_a_key; ++h) {
      const int64_t head = key_head * heads_a_key + h;
      const int64_t query = (text * rows.heads + head) * rows.head_size;
      probabilities(rows, rows.query + query, rows.keys + cached, visible,
                    rows.slopes == nullptr ? 0.0F : rows.slopes[head], scores.data());
      mix(rows, scores.data(), rows.values + cached, visible, out + query);
    }
  }
}

}  // namespace

namespace CPU_CAPABILITY {

template <class T>
void add_decode(Kernels<T>& table) {
  table.decode_attention = &decode_attention<T>;
}
template void add_decode(Kernels<float>& table);
template void add_decode(Kernels<BFloat16>& table);
template void add_decode(Kernels<Half>& table);

}  // namespace CPU_CAPABILITY
}  // namespace sherd::ops::cpu
