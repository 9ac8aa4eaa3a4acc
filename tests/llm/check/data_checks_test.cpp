// What is wrong with a run's data fails the item that is there for it.

#include "llm/check/data_checks.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/llm/check/checked_data.h"
#include "tests/support/ranks.h"

namespace llm::check {
namespace {

using testing::HasSubstr;

class DataChecks : public testing::Test, protected CheckedData {
 protected:
  sherd::World world_ = sherd::World::alone();
};

TEST_F(DataChecks, FailWhereSamplesAreMissing) {
  const CheckItem whole = data_order(data, config, {8, 4, 1}, world_);
  EXPECT_TRUE(whole.ok) << whole.message;
  const CheckItem half = data_order(data, config, {8, 4, 2}, world_);  // no second rank is there
  EXPECT_FALSE(half.ok);
  EXPECT_EQ(half.measured, 16);
  EXPECT_THAT(half.message, HasSubstr("32 samples of an epoch over 1 ranks: 16 missing, 0 more"));
}

TEST_F(DataChecks, FailWhereRanksSeeTheSame) {
  sherd::test::run_ranks(2, [&](sherd::World world) {
    const CheckItem item = data_order(data, config, {8, 4, 1}, world);
    EXPECT_FALSE(item.ok);
    EXPECT_THAT(item.message, HasSubstr("over 2 ranks: 0 missing, 16 more than once"));
    EXPECT_TRUE(data_order(data, config, {8, 4, 2}, world).ok);
  });
}

TEST_F(DataChecks, FailWhereMoreThanTheAnswerIsSupervised) {
  EXPECT_TRUE(labels(data, config, *tokenizer, world_).ok);
  std::vector<text::LabelledPrompt> prompts;
  for (std::size_t i = 0; i < data.training.size(); ++i) {
    const data::Sample sample = data.training[i];
    prompts.push_back({{sample.ids.begin(), sample.ids.end()},
                       {sample.supervised.begin(), sample.supervised.end()}});
  }
  prompts[3].supervised.assign(prompts[3].supervised.size(), 1);
  data.training = data::Samples(prompts);
  const CheckItem item = labels(data, config, *tokenizer, world_);
  EXPECT_FALSE(item.ok);
  EXPECT_EQ(item.measured, 1);
  EXPECT_THAT(item.message, HasSubstr("of 32 samples decodes to their answers in all but 1"));
  EXPECT_THAT(item.message, HasSubstr("; sample 3: \""));
}

TEST_F(DataChecks, FailWhereLessThanTheAnswerIsSupervised) {
  std::vector<text::LabelledPrompt> prompts;
  for (std::size_t i = 0; i < data.training.size(); ++i) {
    const data::Sample sample = data.training[i];
    prompts.push_back({{sample.ids.begin(), sample.ids.end()},
                       {sample.supervised.begin(), sample.supervised.end()}});
  }
  const auto first_of = [](std::vector<std::uint8_t>& supervised) {
    return std::find(supervised.begin(), supervised.end(), 1);
  };
  prompts[2].supervised.back() = 0;
  *first_of(prompts[5].supervised) = 0;
  data.training = data::Samples(prompts);
  EXPECT_EQ(labels(data, config, *tokenizer, world_).measured, 2);
}

TEST_F(DataChecks, FailWhereAnswersAreOtherQuestions) {
  config.data.train[0].path = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-100-heldout.json";
  EXPECT_GT(labels(data, config, *tokenizer, world_).measured, 24);
}

}  // namespace
}  // namespace llm::check
