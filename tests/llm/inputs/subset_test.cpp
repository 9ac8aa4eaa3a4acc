#include "llm/inputs/subset.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llm::inputs {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Subset, IsTheSameEverywhere) {
  EXPECT_THAT(subset(10, 4, 0), ElementsAreArray(subset(10, 4, 0)));
  EXPECT_NE(subset(1000, 10, 0), subset(1000, 10, 1));
}

TEST(Subset, IsInTheOrderOfTheFileAndWithoutRepeats) {
  const auto chosen = subset(1000, 200, 7);
  EXPECT_THAT(chosen, SizeIs(200));
  EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
  EXPECT_GT(chosen.back(), 900U);  // of a file sorted by subject, every subject
  EXPECT_LT(chosen.front(), 100U);
}

TEST(Subset, OfMoreThanThereAreIsAll) {
  EXPECT_THAT(subset(3, 5, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(subset(0, 5, 0), IsEmpty());
}

TEST(Subset, OfMoreContainsThatOfFewer) {
  const auto few = subset(100, 10, 3);
  const auto many = subset(100, 30, 3);
  EXPECT_TRUE(std::includes(many.begin(), many.end(), few.begin(), few.end()));
}

// Samples of one id and one supervised id each.
Samples numbered(int first, int count) {
  std::vector<text::LabelledPrompt> prompts;
  for (int i = 0; i < count; ++i) {
    prompts.push_back({.ids = {1, static_cast<text::TokenId>(first + i)}, .supervised = {0, 1}});
  }
  return Samples(prompts);
}

std::vector<text::TokenId> numbers(const Samples& samples) {
  std::vector<text::TokenId> ids;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(samples[i].supervised_tokens(), 1);
    ids.push_back(samples[i].ids.back());
  }
  return ids;
}

TEST(Mixed, PutsDataSetsSideBySide) {
  const std::vector<Part> parts = {{numbered(10, 2), 1}, {numbered(20, 3), 2}};
  EXPECT_THAT(numbers(mixed(parts, 0)), ElementsAre(10, 11, 20, 21, 22, 20, 21, 22));
}

TEST(Mixed, DrawsAFractionOnce) {
  const std::vector<Part> parts = {{numbered(0, 100), 0.25}, {numbered(200, 10), 1.5}};
  const auto ids = numbers(mixed(parts, 0));
  EXPECT_THAT(ids, SizeIs(25 + 15));
  EXPECT_EQ(ids, numbers(mixed(parts, 0)));
  EXPECT_NE(ids, numbers(mixed(parts, 1)));
  const std::vector<Part> little = {{numbered(0, 3), 0.01}};
  EXPECT_THAT(numbers(mixed(little, 0)), SizeIs(1));
}

TEST(Mixed, CopiesNothingWithoutNeed) {
  const std::vector<Part> parts = {{numbered(10, 2), 1}};
  EXPECT_EQ(mixed(parts, 0)[1].ids.data(), parts[0].samples[1].ids.data());
  const std::vector<Part> twice = {{parts[0].samples, 2}};
  EXPECT_EQ(mixed(twice, 0)[3].ids.data(), parts[0].samples[1].ids.data());
}

}  // namespace
}  // namespace llm::inputs
