// What is wrong with a run's data fails the item that is there for it.

#include "llm/check/data_checks.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/llm/check/checked_data.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/samples_in_memory.h"
#include "tests/support/temp_folder.h"

namespace llm::check {
namespace {

using testing::HasSubstr;

// To be changed, and made samples again.
std::vector<text::LabelledPrompt> prompts_of(const inputs::Samples& samples) {
  std::vector<text::LabelledPrompt> prompts;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const inputs::Sample sample = samples[i];
    prompts.push_back({{sample.ids.begin(), sample.ids.end()},
                       {sample.supervised.begin(), sample.supervised.end()}});
  }
  return prompts;
}

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
  EXPECT_THAT(half.message, HasSubstr("32 samples of an epoch over 1 rank: 16 missing, 0 more"));
}

TEST_F(DataChecks, FailWhereRanksSeeTheSame) {
  sherd::test::run_ranks(2, [&](sherd::World world) {
    const CheckItem item = data_order(data, config, {8, 4, 1}, world);
    if (world.rank() == 0) {
      EXPECT_FALSE(item.ok);
      EXPECT_THAT(item.message, HasSubstr("over 2 ranks: 0 missing, 16 more than once"));
    }
    EXPECT_TRUE(data_order(data, config, {8, 4, 2}, world).ok);
  });
}

TEST_F(DataChecks, FailWhereARankHasAnotherOrder) {
  sherd::test::run_ranks(2, [&](sherd::World world) {
    config::RunConfig mine = config;
    mine.train.seed += world.rank();
    const CheckItem item = data_order(data, mine, {8, 4, 2}, world);
    if (world.rank() == 0) {
      EXPECT_FALSE(item.ok);
      EXPECT_THAT(item.message, HasSubstr("; not the samples that rank 0 finds for them: rank 1"));
    }
  });
}

TEST_F(DataChecks, FailWhereMoreThanTheAnswerIsSupervised) {
  EXPECT_TRUE(labels(data, config, *tokenizer, world_).ok);
  std::vector<text::LabelledPrompt> prompts = prompts_of(data.training);
  prompts[3].supervised.assign(prompts[3].supervised.size(), 1);
  data.training = inputs::samples_in_memory(prompts);
  const CheckItem item = labels(data, config, *tokenizer, world_);
  EXPECT_FALSE(item.ok);
  EXPECT_EQ(item.measured, 1);
  EXPECT_THAT(item.message, HasSubstr("of 32 samples decodes to their answers in all but 1"));
  EXPECT_THAT(item.message, HasSubstr("; sample 3: \""));
}

TEST_F(DataChecks, FailWhereAnAnswerDoesNotStop) {
  std::vector<text::LabelledPrompt> prompts = prompts_of(data.training);
  prompts[3].ids.back() = *tokenizer->token_to_id("<unk>");  // which is no text either
  data.training = inputs::samples_in_memory(prompts);
  const CheckItem item = labels(data, config, *tokenizer, world_);
  EXPECT_FALSE(item.ok);
  EXPECT_EQ(item.measured, 1);
  EXPECT_THAT(item.message,
              HasSubstr("sample 3: an answer does not end with a token that stops generation"));
}

TEST_F(DataChecks, PassWhereRecordsHaveTheirOwnSpecialTokensAndASeparator) {
  const sherd::test::TempFolder folder;
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    lines += R"({"prompt": "<s>Who is it?", "completion": "Lily</s>\n"})"
             "\n";
  }
  folder.write("own.jsonl", lines);
  config.data.train = {{.path = folder.path() / "own.jsonl"}};
  config.data.separator = "\n# ";
  data =
      setup::load_run_data(config, *tokenizer, *shape, world_, [](const std::string& /*line*/) {});
  const inputs::Sample sample = data.training[0];
  EXPECT_EQ(std::count(sample.ids.begin(), sample.ids.end(), 1), 1);
  EXPECT_EQ(std::count(sample.ids.begin(), sample.ids.end(), 2), 1);
  const CheckItem item = labels(data, config, *tokenizer, world_);
  EXPECT_TRUE(item.ok) << item.message;
}

TEST_F(DataChecks, FailWhereLessThanTheAnswerIsSupervised) {
  std::vector<text::LabelledPrompt> prompts = prompts_of(data.training);
  const auto first_of = [](std::vector<std::uint8_t>& supervised) {
    return std::find(supervised.begin(), supervised.end(), 1);
  };
  prompts[2].supervised.back() = 0;
  *first_of(prompts[5].supervised) = 0;
  data.training = inputs::samples_in_memory(prompts);
  EXPECT_EQ(labels(data, config, *tokenizer, world_).measured, 2);
}

// What begins a sample no token predicts: it would be learnt from the sample before, or not at all.
TEST_F(DataChecks, FailWhereASupervisedTokenHasNoneBefore) {
  const auto padding_on_two_ranks = [&] {
    CheckItem of_rank_1;
    sherd::test::run_ranks(2, [&](sherd::World world) {
      CheckItem item = padding(data, config, {8, 4, 2}, world);
      if (world.rank() == 1) {
        of_rank_1 = std::move(item);
      }
    });
    return of_rank_1;
  };
  const CheckItem good = padding_on_two_ranks();
  EXPECT_TRUE(good.ok) << good.message;
  EXPECT_EQ(good.measured, 0);
  const std::int64_t tokens = data.training.tokens();
  EXPECT_THAT(good.message, HasSubstr(std::to_string(tokens) + " tokens of an epoch"));
  std::vector<text::LabelledPrompt> prompts = prompts_of(data.training);
  prompts[7].supervised.front() = 1;
  data.training = inputs::samples_in_memory(prompts);
  const CheckItem item = padding_on_two_ranks();
  EXPECT_FALSE(item.ok);
  EXPECT_THAT(item.message, HasSubstr(" are padding; "));
}

// The file is read once more for its answers, and must be the one that was tokenized.
TEST_F(DataChecks, RefuseAFileThatHasChangedSinceItWasTokenized) {
  config.data.train[0].path = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-100-heldout.json";
  sherd::test::expect_error([&] { static_cast<void>(labels(data, config, *tokenizer, world_)); },
                            sherd::ExitCode::BadData,
                            {"squad-100-heldout.json", "has changed since it was tokenized"});
}

}  // namespace
}  // namespace llm::check
