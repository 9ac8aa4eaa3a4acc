#include "llm/inputs/sampler.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace llm::inputs {
namespace {

using Order = std::vector<std::int64_t>;

Order sorted(Order order) {
  std::sort(order.begin(), order.end());
  return order;
}

Order first(std::int64_t samples) {
  Order order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

TEST(Sampler, EachSampleOnceAnEpoch) {
  for (const std::int64_t samples : {1, 2, 3, 32, 101, 10313}) {
    for (const std::int64_t epoch : {0, 1, 17}) {
      EXPECT_EQ(sorted(epoch_order(samples, 42, epoch)), first(samples));
    }
  }
}

TEST(Sampler, TheOrderIsDefinedToTheLastPlace) {
  // From a separate implementation of the definition in sampler.h, in Python.
  EXPECT_EQ(epoch_order(10, 42, 0), (Order{2, 8, 9, 7, 1, 4, 6, 0, 5, 3}));
  EXPECT_EQ(epoch_order(10, 42, 1), (Order{3, 1, 6, 8, 4, 5, 9, 7, 2, 0}));
  EXPECT_EQ(epoch_order(10, 0, 0), (Order{6, 3, 2, 9, 8, 1, 4, 7, 0, 5}));
}

TEST(Sampler, AnotherOrderEachEpochAndSeed) {
  EXPECT_EQ(epoch_order(100, 1, 2), epoch_order(100, 1, 2));
  EXPECT_NE(epoch_order(100, 1, 2), epoch_order(100, 1, 3));
  EXPECT_NE(epoch_order(100, 1, 2), epoch_order(100, 2, 2));
  EXPECT_NE(epoch_order(100, 1, 2), epoch_order(100, 2, 1));
  EXPECT_NE(epoch_order(100, 1, 2), first(100));
}

TEST(Sampler, EveryPlaceIsAboutEquallyLikely) {
  constexpr int kSamples = 8;
  constexpr int kEpochs = 8000;
  std::vector<int> counts(kSamples * kSamples);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const Order order = epoch_order(kSamples, 7, epoch);
    for (std::size_t place = 0; place < kSamples; ++place) {
      ++counts[place * kSamples + static_cast<std::size_t>(order[place])];
    }
  }
  double chi_square = 0;
  for (const int count : counts) {
    const double expected = static_cast<double>(kEpochs) / kSamples;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 85);  // 49 degrees of freedom: 85 is the 99.9 % point
}

TEST(Sampler, BatchesCoverEachEpoch) {
  Sampler sampler(10, 4, 3);
  ASSERT_EQ(sampler.steps_per_epoch(), 3);
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    Order seen;
    for (std::int64_t step = 0; step < 3; ++step) {
      const Order batch = sampler.batch(epoch * 3 + step);
      EXPECT_EQ(batch.size(), step == 2 ? 2U : 4U);
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    EXPECT_EQ(seen, epoch_order(10, 3, epoch));
  }
}

TEST(Sampler, AnyStepMayBeAskedFor) {
  Sampler uninterrupted(101, 8, 5);
  for (std::int64_t step = 0; step < 40; ++step) {
    const Order batch = uninterrupted.batch(step);
    EXPECT_EQ(Sampler(101, 8, 5).batch(step), batch) << "resumed at step " << step;
  }
}

}  // namespace
}  // namespace llm::inputs
