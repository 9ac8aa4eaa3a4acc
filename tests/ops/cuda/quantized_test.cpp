// The numbers of weights in 8 bits on GPUs, played in several orders of threads.

#include "ops/cuda/kernels/quantized.cuh"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "ops/q8_0.h"
#include "tests/ops/cuda/played.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

template <class T>
class DequantizeOnGpus : public testing::Test {};
using DequantizedDtypes = testing::Types<float, c10::BFloat16, c10::Half>;
TYPED_TEST_SUITE(DequantizeOnGpus, DequantizedDtypes);

// Whole rows, and a tile of their columns.
TYPED_TEST(DequantizeOnGpus, HasTheReferencesBits) {
  using T = TypeParam;
  constexpr int kThreadsOfABlock = 96;
  constexpr int64_t kQuantizedRows = 7, kQuantizedColumns = 160;
  const at::Tensor blocks = q8_0::quantized(random<float>({kQuantizedRows, kQuantizedColumns}, 1));
  const at::Tensor expected = q8_0::dequantized(blocks, kDtype<T>);
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>(0, kQuantizedColumns), {64, 32}}) {
    const at::Tensor part = blocks.narrow(1, q8_0::row_bytes(begin), q8_0::row_bytes(count));
    const at::Tensor out = unwritten<T>({kQuantizedRows, count});
    const QuantizedRows<T> of{part.const_data_ptr<uint8_t>(), data<T>(out), kQuantizedRows, count,
                              part.stride(0)};
    play(2, kThreadsOfABlock, [of] { dequantize<T, kThreadsOfABlock>(of); }, {out});
    EXPECT_TRUE(at::equal(out, expected.narrow(1, begin, count)));
  }
}

}  // namespace
}  // namespace sherd::ops::cuda
