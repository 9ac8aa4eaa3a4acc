#include "llm/inputs/length_histogram.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llm::inputs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(LengthHistogram, HasABinPerLengthWhereTheyAreFew) {
  const std::vector<std::int64_t> lengths = {3, 3, 5};
  EXPECT_THAT(length_histogram(lengths),
              ElementsAre(LengthBin{3, 3, 2}, LengthBin{4, 4, 0}, LengthBin{5, 5, 1}));
  EXPECT_THAT(length_histogram({}), IsEmpty());
}

TEST(LengthHistogram, CountsEachLengthOnceInAtMostTwelveBins) {
  for (const std::int64_t shortest : {0, 1, 7, 199, 200, 131'072}) {
    for (const std::int64_t count : {1, 11, 12, 13, 240, 5000}) {
      std::vector<std::int64_t> lengths(static_cast<std::size_t>(count));
      std::iota(lengths.begin(), lengths.end(), shortest);
      const std::vector<LengthBin> bins = length_histogram(lengths);
      ASSERT_LE(bins.size(), 12U);
      std::int64_t samples = 0;
      for (const LengthBin& bin : bins) {
        EXPECT_EQ(bin.to - bin.from, bins[0].to - bins[0].from);
        samples += bin.samples;
      }
      EXPECT_EQ(samples, count);
      EXPECT_TRUE(bins.front().from <= lengths.front() && lengths.front() <= bins.front().to);
      EXPECT_TRUE(bins.back().from <= lengths.back() && lengths.back() <= bins.back().to);
    }
  }
}

TEST(LengthHistogram, DrawsTheFullestBinInFull) {
  const std::vector<LengthBin> bins = {{0, 9, 16}, {10, 19, 0}, {20, 29, 1}};
  EXPECT_THAT(bar_lengths(bins), ElementsAre(1, 0, 1.0 / 16));
  std::string full;
  for (int column = 0; column < 40; ++column) {
    full += "\u2588";
  }
  EXPECT_EQ(histogram_lines(bins), "\n            0-9  " + full + " 16\n          10-19  0" +
                                       "\n          20-29  \u2588\u2588\u258C 1");
}

}  // namespace
}  // namespace llm::inputs
