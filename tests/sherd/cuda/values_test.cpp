// What GPUs do to single values of shards has the bits of the processor's loops.

#include "tests/emulator/emulator.h"
#include "tests/sherd/cuda/launched.h"
#include "tests/support/expect_error.h"

namespace sherd::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

template <class T>
void check_scale(const Range& range) {
  std::vector<T> found = some_values<T>(range, 3);
  std::vector<T> expected = found;
  kernels::scale_in_place(begin(expected, range), 0.3F, range.numel);
  device_kernels().scale_in_place(begin(found, range), 0.3F, range.numel, nullptr);
  EXPECT_TRUE(are_same(found, expected)) << range.numel << " from " << range.start;
}

TEST(ValuesOnGpus, ALaunchThatFailsIsAnErrorOfItsKernel) {
  float value = 1;
  emulator::fail_next_launch("unspecified launch failure");
  sherd::test::expect_error(
      [&] { device_kernels().scale_in_place(&value, 2, 1, nullptr); }, ExitCode::Internal,
      {"CUDA reported \"unspecified launch failure\"", "kernel scale_in_place"});
  EXPECT_EQ(value, 1);
}

TEST(ValuesOnGpus, AreScaled) {
  for (const Range& range : kRanges) {
    check_scale<float>(range);
    check_scale<uint16_t>(range);
  }
}

struct Bits {
  std::vector<uint16_t> rounded, travelling;
  std::vector<int16_t> low;
  std::vector<float> joined;
};

// Rounds, splits and joins `values` by the loops or the kernels.
Bits bits_of(const std::vector<float>& values, const Range& range, bool by_kernels) {
  const size_t n = values.size();
  Bits bits{std::vector<uint16_t>(n), std::vector<uint16_t>(n), std::vector<int16_t>(n),
            std::vector<float>(n)};
  const float* const from = begin(values, range);
  const kernels::SplitMaster halves{begin(bits.travelling, range), begin(bits.low, range)};
  if (by_kernels) {
    device_kernels().to_bfloat16(from, begin(bits.rounded, range), range.numel, nullptr);
    device_kernels().split(from, halves, range.numel, nullptr);
    device_kernels().join(halves, begin(bits.joined, range), range.numel, nullptr);
  } else {
    kernels::to_bfloat16(from, begin(bits.rounded, range), range.numel);
    kernels::split(from, halves, range.numel);
    kernels::join(halves, begin(bits.joined, range), range.numel);
  }
  return bits;
}

void check_bits(const std::vector<float>& values, const Range& range) {
  const Bits expected = bits_of(values, range, /*by_kernels=*/false);
  const Bits found = bits_of(values, range, /*by_kernels=*/true);
  EXPECT_TRUE(are_same(found.rounded, expected.rounded)) << range.numel;
  EXPECT_TRUE(are_same(found.travelling, expected.travelling)) << range.numel;
  EXPECT_TRUE(are_same(found.low, expected.low)) << range.numel;
  EXPECT_TRUE(are_same(found.joined, expected.joined)) << range.numel;
}

TEST(ValuesOnGpus, AreRoundedSplitAndJoined) {
  for (const Range& range : kRanges) {
    check_bits(some_floats(range, 9), range);
  }
}

// Of every fifth bf16, the floats around it and around the ties between it and the next.
TEST(ValuesOnGpus, OfEveryKindAreRoundedSplitAndJoined) {
  std::vector<float> values(kMargin);
  for (uint32_t high = 0; high <= 0xffffU; high += 5) {
    for (const uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      values.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  const Range range{static_cast<int64_t>(values.size()) - kMargin, 0};
  values.resize(values.size() + kMargin);
  check_bits(values, range);
}

}  // namespace
}  // namespace sherd::cuda
