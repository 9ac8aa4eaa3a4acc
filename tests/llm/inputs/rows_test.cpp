#include "llm/inputs/rows.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace llm::inputs {
namespace {

using Ids = std::vector<std::int64_t>;

Samples of_lengths(const std::vector<std::int64_t>& lengths) {
  std::vector<text::LabelledPrompt> prompts;
  for (const std::int64_t length : lengths) {
    const auto size = static_cast<std::size_t>(length);
    prompts.push_back({.ids = std::vector<text::TokenId>(size, 7),
                       .supervised = std::vector<std::uint8_t>(size, 0)});
  }
  return Samples(prompts);
}

Ids row(const Rows& rows, std::int64_t index) {
  return rows.samples_of(std::vector<std::int64_t>{index});
}

TEST(Rows, HoldASampleEachUnlessPacked) {
  const Rows rows = Rows::one_each(5);
  EXPECT_EQ(rows.size(), 5);
  EXPECT_EQ(rows.samples_of(Ids{3, 0}), (Ids{3, 0}));
}

TEST(Rows, PackedHoldEachSampleOnceAndNoMoreThanFits) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 500; ++i) {
    lengths.push_back(1 + i * 37 % 90);
  }
  const Samples samples = of_lengths(lengths);
  const Rows rows = Rows::first_fit(samples, 100, 3);
  Ids all(static_cast<std::size_t>(rows.size()));
  std::iota(all.begin(), all.end(), 0);
  Ids seen = rows.samples_of(all);
  std::int64_t tokens = 0;
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    std::int64_t row_tokens = 0;
    for (const std::int64_t sample : row(rows, r)) {
      row_tokens += lengths[static_cast<std::size_t>(sample)];
    }
    EXPECT_LE(row_tokens, 100) << r;
    EXPECT_GT(row_tokens, 0) << r;
    tokens += row_tokens;
  }
  std::sort(seen.begin(), seen.end());
  Ids expected(500);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(seen, expected);
  EXPECT_GT(tokens, rows.size() * 90) << "first-fit leaves less than a tenth";
}

// Each goes to the first row with room: no sample fits in a row before its own.
TEST(Rows, PackedAreThoseOfFirstFit) {
  const std::vector<std::int64_t> lengths = {6, 5, 4, 3, 2, 7, 1, 10, 9, 1};
  const Samples samples = of_lengths(lengths);
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    const Rows rows = Rows::first_fit(samples, 10, seed);
    std::vector<std::int64_t> room(static_cast<std::size_t>(rows.size()), 10);
    // Rows keep the order of arrival, so that a row's first sample fits in no row before it.
    for (std::size_t r = 0; r < room.size(); ++r) {
      const Ids own = row(rows, static_cast<std::int64_t>(r));
      for (const std::int64_t sample : own) {
        room[r] -= lengths[static_cast<std::size_t>(sample)];
      }
      EXPECT_GE(room[r], 0);
      for (std::size_t earlier = 0; earlier < r; ++earlier) {
        EXPECT_LT(room[earlier], lengths[static_cast<std::size_t>(own.front())])
            << "row " << earlier << " would have had room for the first sample of " << r;
      }
    }
  }
}

TEST(Rows, PackingDependsOnSamplesCapacityAndSeedAlone) {
  const Samples samples = of_lengths({6, 5, 4, 3, 2, 7, 1, 10, 9, 1, 3, 3, 2});
  const auto all = [&](std::uint64_t seed) {
    const Rows rows = Rows::first_fit(samples, 12, seed);
    std::vector<Ids> found;
    for (std::int64_t r = 0; r < rows.size(); ++r) {
      found.push_back(row(rows, r));
    }
    return found;
  };
  EXPECT_EQ(all(1), all(1));
  EXPECT_NE(all(1), all(2));
}

TEST(Rows, ASampleThatFitsInNoRowHasOneOfItsOwn) {
  const Rows rows = Rows::first_fit(of_lengths({3, 40, 3}), 10, 0);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(row(rows, 0).size() + row(rows, 1).size(), 3U);
}

TEST(Rows, NoSamplesMakeNoRows) {
  EXPECT_EQ(Rows::first_fit(of_lengths({}), 10, 0).size(), 0);
}

}  // namespace
}  // namespace llm::inputs
