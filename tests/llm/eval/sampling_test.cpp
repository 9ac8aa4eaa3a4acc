#include "llm/eval/sampling.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llm::eval {
namespace {

using testing::ElementsAre;
using testing::Key;

// Scores of probabilities 0.5, 0.25, 0.125, 0.125.
const std::vector<float> kScores = {std::log(4.F), std::log(8.F), std::log(2.F), std::log(2.F)};

std::map<text::TokenId, int> drawn(const std::vector<float>& scores, const Sampling& sampling,
                                   int draws = 4000) {
  std::map<text::TokenId, int> counts;
  for (int i = 0; i < draws; ++i) {
    ++counts[sampled_token(scores, sampling, {.text = 3, .position = static_cast<uint64_t>(i)})];
  }
  return counts;
}

TEST(Sampling, DrawsWithTheProbabilitiesOfTheScores) {
  const auto counts = drawn(kScores, {.temperature = 1});
  // Five standard deviations.
  EXPECT_NEAR(counts.at(0), 1000, 137);
  EXPECT_NEAR(counts.at(1), 2000, 159);
  EXPECT_NEAR(counts.at(2), 500, 105);
  EXPECT_NEAR(counts.at(3), 500, 105);
}

TEST(Sampling, DividesScoresByTheTemperature) {
  const auto counts = drawn(kScores, {.temperature = 0.5});  // probabilities squared
  EXPECT_NEAR(counts.at(1), 4000 * 64 / 88.0, 142);
  EXPECT_NEAR(counts.at(0), 4000 * 16 / 88.0, 122);
  EXPECT_THAT(drawn(kScores, {.temperature = 0.01}), ElementsAre(Key(1)));
  EXPECT_THAT(drawn(kScores, {.temperature = 1e-300}), ElementsAre(Key(1)));
}

TEST(Sampling, KeepsTheLikeliestTokens) {
  EXPECT_THAT(drawn(kScores, {.temperature = 1, .top_k = 1}), ElementsAre(Key(1)));
  EXPECT_THAT(drawn(kScores, {.temperature = 1, .top_k = 2}), ElementsAre(Key(0), Key(1)));
  EXPECT_THAT(drawn(kScores, {.temperature = 1, .top_k = 3}), ElementsAre(Key(0), Key(1), Key(2)));
  EXPECT_THAT(drawn(kScores, {.temperature = 1, .top_k = 9}),
              ElementsAre(Key(0), Key(1), Key(2), Key(3)));
}

TEST(Sampling, KeepsTokensUntilTheirProbabilityIsReached) {
  EXPECT_THAT(drawn(kScores, {.temperature = 1, .top_p = 0}), ElementsAre(Key(1)));
  EXPECT_THAT(drawn(kScores, {.temperature = 1, .top_p = 0.49}), ElementsAre(Key(1)));
  EXPECT_THAT(drawn(kScores, {.temperature = 1, .top_p = 0.6}), ElementsAre(Key(0), Key(1)));
  EXPECT_THAT(drawn(kScores, {.temperature = 1, .top_p = 0.8}),
              ElementsAre(Key(0), Key(1), Key(2)));
  EXPECT_THAT(drawn(kScores, {.temperature = 1, .top_p = 0.9}),
              ElementsAre(Key(0), Key(1), Key(2), Key(3)));
  // Of the three likeliest the first two have 6/7.
  EXPECT_THAT(drawn(kScores, {.temperature = 1, .top_p = 0.84, .top_k = 3}),
              ElementsAre(Key(0), Key(1)));
}

TEST(Sampling, DependsOnSeedTextAndPositionAlone) {
  const std::vector<float> scores(1000, 0);
  const Sampling sampling{.temperature = 1, .seed = 7};
  const auto drawn_at = [&](uint64_t seed, uint64_t text, uint64_t position) {
    return sampled_token(scores, {.temperature = 1, .seed = seed}, {text, position});
  };
  EXPECT_EQ(drawn_at(7, 2, 5), sampled_token(scores, sampling, {2, 5}));
  EXPECT_NE(drawn_at(7, 2, 5), drawn_at(8, 2, 5));
  EXPECT_NE(drawn_at(7, 2, 5), drawn_at(7, 3, 5));
  EXPECT_NE(drawn_at(7, 2, 5), drawn_at(7, 2, 6));
}

TEST(Sampling, DrawsNoTokenWithoutProbability) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(drawn({kNever, 1, kNever, 0}, {.temperature = 2}), ElementsAre(Key(1), Key(3)));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sampled_token(std::vector<float>{nan, nan}, {.temperature = 1}, {}), 0);
}

}  // namespace
}  // namespace llm::eval
