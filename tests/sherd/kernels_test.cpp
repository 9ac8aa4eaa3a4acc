#include "src/kernels/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

namespace sherd::kernels {
namespace {

// The last is large enough for stores that pass the caches by.
constexpr int64_t kSizes[] = {1, 15, 16, 17, 2047, 2048, 2049, 5000, 600'001};

std::vector<float> random_floats(int64_t numel, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(numel));
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

std::vector<uint16_t> to_bits(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  to_bfloat16(values.data(), bits.data(), static_cast<int64_t>(values.size()));
  return bits;
}

float from_bits(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

TEST(Kernels, StreamsToAnyAddress) {
  const std::vector<char> source(300, 'x');
  for (int64_t offset = 0; offset < 17; ++offset) {
    for (const int64_t bytes : {0, 1, 15, 16, 33, 256}) {
      std::vector<char> target(300, '-');
      std::vector<char> expected = target;
      std::fill_n(expected.begin() + offset, bytes, 'x');
      stream(source.data(), target.data() + offset, bytes);
      end_of_stream();
      EXPECT_EQ(target, expected) << offset << ", " << bytes;
    }
  }
}

TEST(Kernels, SumsInRankOrder) {
  for (const int64_t numel : kSizes) {
    for (const bool accumulate : {false, true}) {
      const std::vector<std::vector<float>> parts = {
          random_floats(numel, 1), random_floats(numel, 2), random_floats(numel, 3)};
      std::vector<float> out = random_floats(numel, 4);
      std::vector<float> expected = out;
      for (size_t i = 0; i < out.size(); ++i) {
        expected[i] = accumulate ? expected[i] : 0.0F;
        for (const auto& part : parts) {
          expected[i] += 0.25F * part[i];
        }
      }
      const std::vector<const float*> sources = {parts[0].data(), parts[1].data(), parts[2].data()};
      const double squares = sum_in_rank_order(out.data(), accumulate, 0.25F, sources, numel);
      EXPECT_EQ(out, expected) << numel;
      EXPECT_EQ(squares, sum_of_squares(out.data(), numel)) << numel;
    }
  }
}

TEST(Kernels, SumsBfloat16InFp32) {
  for (const int64_t numel : kSizes) {
    const auto a = to_bits(random_floats(numel, 1));
    const auto b = to_bits(random_floats(numel, 2));
    std::vector<float> out(static_cast<size_t>(numel), 1e9F);
    const std::vector<const uint16_t*> sources = {a.data(), b.data()};
    const double squares = sum_in_rank_order(out.data(), false, 0.5F, sources, numel);
    EXPECT_EQ(squares, sum_of_squares(out.data(), numel)) << numel;
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], 0.5F * from_bits(a[i]) + 0.5F * from_bits(b[i]));
    }
  }
}

TEST(Kernels, SumOfSquaresAgainstDoubles) {
  for (const int64_t numel : kSizes) {
    const auto values = random_floats(numel, 5);
    double expected = 0;
    for (const float value : values) {
      expected += double{value} * value;
    }
    EXPECT_NEAR(sum_of_squares(values.data(), numel), expected, 1e-6 * expected);
  }
  const std::vector<float> bad = {1.0F, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(sum_of_squares(bad.data(), 2)));
}

TEST(Kernels, ScalesInPlace) {
  auto values = random_floats(100, 6);
  auto expected = values;
  for (float& value : expected) {
    value *= 3.0F;
  }
  scale_in_place(values.data(), 3.0F, 100);
  EXPECT_EQ(values, expected);
}

// Every bf16, the floats around it and around the ties between it and the next.
TEST(Kernels, RoundsToBfloat16AsLibTorchDoes) {
  std::vector<float> values;
  for (uint32_t high = 0; high <= 0xffffU; ++high) {
    for (const uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      values.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  const auto bits = to_bits(values);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(from_bits(bits[i])));
    } else {
      ASSERT_EQ(bits[i], c10::BFloat16(values[i]).x) << values[i];
    }
  }
}

// [Note: Masters in two halves], for every fp32 value there is, by their upper 16 bits.
TEST(Kernels, SplitMastersLoseNoBitOfAnyValue) {
  constexpr int64_t kStretch = int64_t{1} << 16;
  constexpr uint32_t kTie = 0x8000;
  std::vector<float> values(kStretch);
  std::vector<float> joined(kStretch);
  std::vector<uint16_t> travelling(kStretch);
  std::vector<int16_t> low(kStretch);
  for (uint32_t high = 0; high < kStretch; ++high) {
    for (uint32_t i = 0; i < kStretch; ++i) {
      values[i] = std::bit_cast<float>(high << 16 | i);
    }
    const std::vector<uint16_t> nearest = to_bits(values);
    split(values.data(), {travelling.data(), low.data()}, kStretch);
    join({travelling.data(), low.data()}, joined.data(), kStretch);
    std::vector<float> whole = values;
    std::ranges::transform(whole, whole.begin(), &settled);
    ASSERT_EQ(travelling, nearest);
    ASSERT_EQ(travelling, to_bits(whole));
    if (is_nan(high << 16 | 1U)) {
      const auto first = (high & 0x7fU) == 0 ? 1 : 0;  // an infinity
      ASSERT_TRUE(first == 0 || (joined[0] == values[0] && whole[0] == values[0])) << high;
      ASSERT_TRUE(
          std::all_of(joined.begin() + first, joined.end(), [](float x) { return x != x; }));
      ASSERT_TRUE(std::all_of(whole.begin() + first, whole.end(), [](float x) { return x != x; }));
      continue;
    }
    if (high % 2 == 0) {
      values[kTie] = std::bit_cast<float>((high << 16 | kTie) - 1);
    }
    ASSERT_EQ(std::memcmp(joined.data(), values.data(), kStretch * sizeof(float)), 0) << high;
    ASSERT_EQ(std::memcmp(whole.data(), values.data(), kStretch * sizeof(float)), 0) << high;
  }
}

template <class T>
void set_moments(AdamWShards& shards, std::vector<T>& exp_avg, std::vector<T>& exp_avg_sq) {
  shards.exp_avg = exp_avg.data();
  shards.exp_avg_sq = exp_avg_sq.data();
}

TEST(Kernels, AdamWOfSplitMastersHasTheBitsOfWholeOnes) {
  for (const int64_t numel : kSizes) {
    const auto n = static_cast<size_t>(numel);
    std::vector<float> master = random_floats(numel, 7);
    std::vector<uint16_t> travelling(n);
    std::vector<uint16_t> high(n);
    std::vector<int16_t> low(n);
    const SplitMaster halves{high.data(), low.data()};
    split(master.data(), halves, numel);
    std::vector<std::vector<float>> wide(4, std::vector<float>(n));
    std::vector<std::vector<uint16_t>> narrow(4, std::vector<uint16_t>(n));
    for (uint32_t t = 1; t <= 6; ++t) {
      const auto gradient = random_floats(numel, 100 + t);
      const AdamWStep step{.keep = 0.999F,
                           .step_size = 0.01F,
                           .one_minus_beta1 = 0.1F,
                           .beta2 = 0.99F,
                           .one_minus_beta2 = 0.01F,
                           .eps = 1e-8F,
                           .number = t};
      AdamWShards whole{.master = master.data(), .travelling = travelling.data()};
      AdamWShards split{.travelling = halves.travelling, .low = halves.low};
      if (t % 2 == 0) {
        set_moments(whole, wide[0], wide[1]);
        set_moments(split, wide[2], wide[3]);
      } else {
        set_moments(whole, narrow[0], narrow[1]);
        set_moments(split, narrow[2], narrow[3]);
      }
      for (AdamWShards* shards : {&whole, &split}) {
        shards->gradient = gradient.data();
        shards->first_element = 11;
        adamw(*shards, numel, step);
      }
    }
    std::vector<float> joined(n);
    join(halves, joined.data(), numel);
    EXPECT_EQ(joined, master);
    EXPECT_EQ(high, travelling);
    EXPECT_EQ(wide[0], wide[2]);
    EXPECT_EQ(wide[1], wide[3]);
    EXPECT_EQ(narrow[0], narrow[2]);
    EXPECT_EQ(narrow[1], narrow[3]);
  }
}

// Each update is a fortieth of what rounding to nearest would not lose.
TEST(Kernels, AdamWOfMastersInBf16LosesNoUpdateInExpectation) {
  constexpr int64_t kNumel = 4096;
  constexpr float kUpdate = 1e-4F;
  std::vector<uint16_t> master(kNumel, 0x3f80);  // 1.0
  std::vector<float> exp_avg(kNumel);
  std::vector<float> exp_avg_sq(kNumel);
  const std::vector<float> gradient(kNumel, 3.0F);
  constexpr uint32_t kSteps = 1000;
  for (uint32_t t = 1; t <= kSteps; ++t) {
    adamw({.travelling = master.data(),
           .exp_avg = exp_avg.data(),
           .exp_avg_sq = exp_avg_sq.data(),
           .gradient = gradient.data()},
          kNumel,
          {.step_size = kUpdate,
           .one_minus_beta1 = 1,
           .beta2 = 0,
           .one_minus_beta2 = 1,
           .number = t});
  }
  double mean = 0;
  for (const uint16_t bits : master) {
    mean += double{from_bits(bits)} / kNumel;
  }
  EXPECT_NEAR(mean, 1 - kSteps * kUpdate, 1e-3);
}

// Wherever a shard is cut, and on values that rounding must leave alone.
TEST(Kernels, AdamWOfMastersInBf16DependsOnTheElementAlone) {
  const int64_t numel = 5000;
  const auto n = static_cast<size_t>(numel);
  const auto gradient = random_floats(numel, 4);
  const AdamWStep step{.step_size = 0.01F,
                       .one_minus_beta1 = 0.1F,
                       .beta2 = 0.99F,
                       .one_minus_beta2 = 0.01F,
                       .eps = 1e-8F,
                       .number = 3};
  const auto updated = [&](int64_t cut) {
    std::vector<uint16_t> master = to_bits(random_floats(numel, 7));
    master[1] = 0x7f80;  // infinity
    master[2] = 0xffff;  // NaN
    std::vector<uint16_t> exp_avg(n);
    std::vector<uint16_t> exp_avg_sq(n);
    const AdamWShards all{.travelling = master.data(),
                          .exp_avg = exp_avg.data(),
                          .exp_avg_sq = exp_avg_sq.data(),
                          .gradient = gradient.data(),
                          .first_element = 5};
    adamw(all, cut, step);
    adamw(all.from(cut), numel - cut, step);
    return master;
  };
  const std::vector<uint16_t> whole = updated(numel);
  EXPECT_EQ(whole[1], 0x7f80);
  EXPECT_TRUE(std::isnan(from_bits(whole[2])));
  EXPECT_EQ(whole, updated(1));
  EXPECT_EQ(whole, updated(2049));
}

TEST(Kernels, AdamWReadsGradientsInBf16AsTheirValues) {
  for (const int64_t numel : kSizes) {
    const auto n = static_cast<size_t>(numel);
    const std::vector<uint16_t> narrow = to_bits(random_floats(numel, 4));
    std::vector<float> wide(n);
    std::transform(narrow.begin(), narrow.end(), wide.begin(), from_bits);
    const auto updated = [&](ConstValues gradient) {
      std::vector<float> values = random_floats(numel, 7);
      std::vector<float> exp_avg(n);
      std::vector<float> exp_avg_sq(n);
      adamw({.master = values.data(),
             .exp_avg = exp_avg.data(),
             .exp_avg_sq = exp_avg_sq.data(),
             .gradient = gradient},
            numel,
            {.step_size = 0.1F, .one_minus_beta1 = 0.1F, .beta2 = 0.9F, .one_minus_beta2 = 0.1F});
      values.insert(values.end(), exp_avg_sq.begin(), exp_avg_sq.end());
      return values;
    };
    EXPECT_EQ(updated(narrow.data()), updated(wide.data()));
  }
}

// What fp32 sums are, rounded once a call.
TEST(Kernels, SumsIntoBf16) {
  for (const int64_t numel : kSizes) {
    const auto n = static_cast<size_t>(numel);
    const std::vector<std::vector<float>> parts = {random_floats(numel, 1),
                                                   random_floats(numel, 2)};
    const std::vector<const float*> sources = {parts[0].data(), parts[1].data()};
    std::vector<uint16_t> narrow(n);
    std::vector<float> wide(n);
    for (const bool accumulate : {false, true}) {
      sum_in_rank_order(wide.data(), accumulate, 0.5F, sources, numel);
      const double squares = sum_in_rank_order(narrow.data(), accumulate, 0.5F, sources, numel);
      ASSERT_EQ(narrow, to_bits(wide)) << numel;
      std::transform(narrow.begin(), narrow.end(), wide.begin(), from_bits);
      ASSERT_EQ(squares, sum_of_squares(narrow.data(), numel));
      ASSERT_EQ(squares, sum_of_squares(wide.data(), numel));
    }
    scale_in_place(narrow.data(), 0.3F, numel);
    scale_in_place(wide.data(), 0.3F, numel);
    ASSERT_EQ(narrow, to_bits(wide));
  }
}

// Against the algorithm in doubles, over ten steps.
TEST(Kernels, AdamWAgainstDoubles) {
  const double lr = 1e-3;
  const double beta1 = 0.9;
  const double beta2 = 0.999;
  const double eps = 1e-8;
  const double decay = 0.1;
  for (const int64_t numel : kSizes) {
    auto master = random_floats(numel, 7);
    const auto n = static_cast<size_t>(numel);
    std::vector<float> exp_avg(n);
    std::vector<float> exp_avg_sq(n);
    std::vector<uint16_t> travelling(n);
    std::vector<double> p(master.begin(), master.end());
    std::vector<double> m(n);
    std::vector<double> v(n);
    for (int t = 1; t <= 10; ++t) {
      const auto gradient = random_floats(numel, static_cast<unsigned>(100 + t));
      const double correction1 = 1 - std::pow(beta1, t);
      const double correction2 = 1 - std::pow(beta2, t);
      adamw({.master = master.data(),
             .travelling = travelling.data(),
             .exp_avg = exp_avg.data(),
             .exp_avg_sq = exp_avg_sq.data(),
             .gradient = gradient.data()},
            numel,
            {.keep = static_cast<float>(1 - lr * decay),
             .step_size = static_cast<float>(lr / correction1),
             .one_minus_beta1 = static_cast<float>(1 - beta1),
             .beta2 = static_cast<float>(beta2),
             .one_minus_beta2 = static_cast<float>(1 - beta2),
             .bias_correction2_sqrt = static_cast<float>(std::sqrt(correction2)),
             .eps = static_cast<float>(eps),
             .grad_scale = 0.5F});
      for (size_t i = 0; i < n; ++i) {
        const double g = 0.5 * double{gradient[i]};
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        p[i] = p[i] * (1 - lr * decay) -
               lr / correction1 * m[i] / (std::sqrt(v[i]) / std::sqrt(correction2) + eps);
      }
    }
    for (size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(exp_avg[i], m[i], 1e-6);
      ASSERT_NEAR(exp_avg_sq[i], v[i], 1e-6 * v[i] + 1e-12);
      ASSERT_NEAR(master[i], p[i], 1e-6 * std::abs(p[i]) + 1e-7);
      ASSERT_EQ(travelling[i], c10::BFloat16(master[i]).x);
    }
  }
}

}  // namespace
}  // namespace sherd::kernels
