// Products of few rows with a weight, which lies in memory as it is read: a library's product would
// first copy the weight into the order of its own loops, which costs as much as the product.

#include <algorithm>
#include <iterator>
#include <vector>

#include "ops/cpu/loops/rows.h"
#include "ops/cpu/loops/table.h"

namespace sherd::ops::cpu {
namespace {

constexpr int64_t kRows = 4;                        // of a block
constexpr int64_t kOutputs = kLanes >= 16 ? 4 : 2;  // a block's sums fit the registers

template <int64_t rows, int64_t outputs>
using Sums = Vec[rows][outputs];

template <int64_t rows, int64_t outputs>
[[gnu::always_inline]] inline void add_products(const float* input, const float* weights,
                                                int64_t inner, int64_t count,
                                                Sums<rows, outputs>& sums) {
  Vec of_outputs[outputs];
  for (int64_t o = 0; o < outputs; ++o) {
    of_outputs[o] = Vec::loadu(weights + o * inner, count);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const Vec x = Vec::loadu(input + r * inner, count);
    for (int64_t o = 0; o < outputs; ++o) {
      sums[r][o] = at::vec::fmadd(x, of_outputs[o], sums[r][o]);
    }
  }
}

// Products of `rows` rows and `outputs` outputs, each summed in the same order whatever else is in
// the block: a row's result does not depend on the other rows. Fetches `inner` weights from `ahead`
// on meanwhile, which would else be waited for.
template <int64_t rows, int64_t outputs, class T>
void block(const float* input, const float* weights, int64_t inner, const T* ahead,
           float (&out)[rows][outputs]) {
  Sums<rows, outputs> sums;
  for (auto& of_row : sums) {
    std::fill(std::begin(of_row), std::end(of_row), Vec(0.0F));
  }
  int64_t i = 0;
  for (; i + kLanes <= inner; i += kLanes) {
    __builtin_prefetch(ahead + i);
    add_products<rows, outputs>(input + i, weights + i, inner, kLanes, sums);
  }
  if (i < inner) {
    add_products<rows, outputs>(input + i, weights + i, inner, inner - i, sums);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      out[r][o] = at::vec::vec_reduce_all<float>([](const Vec& x, const Vec& y) { return x + y; },
                                                 sums[r][o]);
    }
  }
}

// Numbers as floats: themselves, or widened into `room`.
inline const float* as_floats(const float* values, int64_t /*count*/,
                              std::vector<float>& /*room*/) {
  return values;
}
template <class T>
const float* as_floats(const T* values, int64_t count, std::vector<float>& room) {
  room.resize(static_cast<size_t>(count));
  for_each_step(count, [&](int64_t i, int64_t of_step) {
    store(room.data() + i, load(values + i, of_step), of_step);
  });
  return room.data();
}

template <class T, int64_t outputs>
struct Outputs {
  const FewRows<T>& of;
  const float* input;
  const float* weights;  // of the first output on
  int64_t output;

  template <int64_t rows>
  void compute(int64_t row, const T* ahead, T* out) const {
    float sums[rows][outputs];
    block<rows, outputs>(input + row * of.inner, weights, of.inner, ahead, sums);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < outputs; ++o) {
        const float bias = of.bias == nullptr ? 0.0F : static_cast<float>(of.bias[output + o]);
        out[(row + r) * of.outputs + output + o] = static_cast<T>(sums[r][o] + bias);
      }
    }
  }

  // Each block of rows fetches another output of those that come next.
  void compute_all(T* out) const {
    const T* next = of.weight + (output + outputs) * of.inner;
    int64_t row = 0, blocks = 0;
    const auto ahead = [&] { return next + (blocks++ % outputs) * of.inner; };
    for (; row + kRows <= of.rows; row += kRows) {
      compute<kRows>(row, ahead(), out);
    }
    for (; row < of.rows; ++row) {
      compute<1>(row, ahead(), out);
    }
  }
};

template <class T>
void few_rows_product(const FewRows<T>& of, T* out, int64_t begin, int64_t end) {
  std::vector<float> input_room, weight_room;
  const float* input = as_floats(of.input, of.rows * of.inner, input_room);
  const auto weights_of = [&](int64_t output, int64_t count) {
    return as_floats(of.weight + output * of.inner, count * of.inner, weight_room);
  };
  int64_t output = begin;
  for (; output + kOutputs <= end; output += kOutputs) {
    Outputs<T, kOutputs>{of, input, weights_of(output, kOutputs), output}.compute_all(out);
  }
  for (; output < end; ++output) {
    Outputs<T, 1>{of, input, weights_of(output, 1), output}.compute_all(out);
  }
}

}  // namespace

namespace CPU_CAPABILITY {

template <class T>
void add_few_rows(Kernels<T>& table) {
  table.few_rows_product = &few_rows_product<T>;
}
template void add_few_rows(Kernels<float>& table);
template void add_few_rows(Kernels<BFloat16>& table);
template void add_few_rows(Kernels<Half>& table);

}  // namespace CPU_CAPABILITY
}  // namespace sherd::ops::cpu
