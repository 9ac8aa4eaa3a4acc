// A run that was stopped and goes on is the run that was never stopped: bit by bit.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

// Accumulation (two or three micro-batches a step and rank) and clipping that clips.
Arguments with_accumulation(const fs::path& output, const std::string& dtype) {
  return on_ranks(2, train(output, "10")) + Arguments{"--train.micro_batch",
                                                      "2",
                                                      "--optim.clip_grad_norm",
                                                      "0.5",
                                                      "--optim.lr",
                                                      "1e-3",
                                                      "--optim.warmup_steps",
                                                      "2",
                                                      "--precision.param_dtype",
                                                      dtype,
                                                      "--checkpoint.keep",
                                                      "9"};
}

void expect_equal_runs(const fs::path& left, const fs::path& right) {
  EXPECT_EQ(column(left, "loss"), column(right, "loss"));
  EXPECT_EQ(column(left, "grad_norm"), column(right, "grad_norm"));
  EXPECT_EQ(column(left, "lr"), column(right, "lr"));
  const std::string weights = exported_weights(left);
  EXPECT_GT(weights.size(), 500'000U);
  EXPECT_TRUE(weights == exported_weights(right));
}

class Stopped : public testing::TestWithParam<std::string> {};

TEST_P(Stopped, RunThatGoesOnIsTheUninterruptedRun) {
  const TempFolder folder;
  const fs::path whole = folder.path() / "whole";
  const fs::path parts = folder.path() / "parts";
  expect_code(0, with_accumulation(whole, GetParam()));

  const Ended stopped = run_until({.text = "step 1/10"}, with_accumulation(parts, GetParam()));
  EXPECT_EQ(stopped.code, 75) << stopped.out << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("the same command resumes from"));

  // In the middle of the second epoch; one rank is asked.
  const Ended again =
      run_until({.text = "step 4/10", .rank = 1}, with_accumulation(parts, GetParam()));
  EXPECT_EQ(again.code, 75) << again.out << again.err;
  EXPECT_THAT(again.out, HasSubstr("resumed from"));

  const Ended rest = expect_code(0, with_accumulation(parts, GetParam()));
  EXPECT_THAT(rest.out, HasSubstr("resumed from"));
  EXPECT_THAT(column(whole, "loss"), testing::SizeIs(10));
  const auto norms = column(whole, "grad_norm");
  EXPECT_GT(*std::min_element(norms.begin(), norms.end()), 0.5);  // every step was clipped
  expect_equal_runs(whole, parts);
}

INSTANTIATE_TEST_SUITE_P(Precisions, Stopped, testing::Values("float32", "bfloat16"));

// One run with a checkpoint in the middle of its second epoch, and what starts from it.
class Resume : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    expect_code(0, on_ranks(2, run(whole())) + Arguments{"--checkpoint.every_steps", "4"});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static fs::path whole() { return folder_->path() / "whole"; }
  static std::string middle() { return (whole() / "checkpoints/step-00000004").string(); }
  static Arguments run(const fs::path& output) {
    return train(output) + Arguments{"--train.micro_batch", "2", "--optim.lr", "1e-4"};
  }
  static std::vector<double> losses_after_middle() {
    const auto losses = column(whole(), "loss");
    return {losses.begin() + 4, losses.end()};
  }

  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static inline std::unique_ptr<TempFolder> folder_;
};

TEST_F(Resume, FromAPathInTheMiddleOfAnEpoch) {
  const fs::path output = folder_->path() / "from-path";
  expect_code(0, on_ranks(2, run(output)) + Arguments{"--resume", middle()});
  EXPECT_EQ(column(output, "loss", 5), losses_after_middle());
  EXPECT_TRUE(exported_weights(output) == exported_weights(whole()));
}

TEST_F(Resume, OnAnotherWorldSize) {
  for (const int ranks : {1, 3}) {
    const fs::path output = folder_->path() / ("ranks" + std::to_string(ranks));
    expect_code(0, on_ranks(ranks, run(output)) + Arguments{"--resume", middle()});
    const auto losses = column(output, "loss", 5);
    const auto expected = losses_after_middle();
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]) << ranks << " ranks";
    }
  }
}

TEST_F(Resume, OfAFinishedRunDoesNothingAgain) {
  const std::string log = read_file(whole() / "log.jsonl");
  const std::string weights = exported_weights(whole());
  const Ended ended =
      expect_code(0, on_ranks(2, run(whole())) + Arguments{"--checkpoint.every_steps", "4"});
  EXPECT_THAT(ended.out, HasSubstr("step 6 of 6"));
  EXPECT_EQ(read_file(whole() / "log.jsonl"), log);
  EXPECT_TRUE(exported_weights(whole()) == weights);
}

TEST_F(Resume, NeverOrOverwriteStartsAnew) {
  const fs::path output = folder_->path() / "anew";
  expect_code(0, run(output) + Arguments{"--resume", "never"});
  const Arguments shorter = {
      "--resume", "overwrite", "--checkpoint.every_steps", "2", "--optim.warmup_steps", "1"};
  const Ended ended = expect_code(0, run(output) + shorter);
  EXPECT_THAT(ended.out, testing::Not(HasSubstr("resumed")));
  EXPECT_EQ(column(output, "loss").size(), 6U);
}

TEST_F(Resume, WithOtherSettingsIsRefusedAndNamesThem) {
  const auto before = listing(whole());
  const std::string config = read_file(whole() / "config.toml");
  const Ended ended =
      expect_code(64, run(whole()) + Arguments{"--train.seed", "5", "--data.max_answer_tokens",
                                               "16", "--optim.eps", "1e-7"});
  for (const char* part : {"train.seed was 0 and is now 5",
                           "data.max_answer_tokens was 32 and is now 16", "--resume never"}) {
    EXPECT_EQ(count_of(ended.err, part), 1U) << ended.err;
  }
  EXPECT_THAT(ended.err, testing::Not(HasSubstr("optim.eps")));  // it may change
  EXPECT_EQ(listing(whole()), before);
  EXPECT_EQ(read_file(whole() / "config.toml"), config);
}

TEST_F(Resume, FromAFolderWithoutCheckpointIsRefused) {
  const fs::path output = folder_->path() / "nothing";
  const Ended ended = expect_code(66, run(output) + Arguments{"--resume", "/no/such/run"});
  EXPECT_THAT(ended.err, HasSubstr("no complete checkpoint in '/no/such/run'"));
  EXPECT_FALSE(fs::exists(output));
}

}  // namespace
}  // namespace sherd::test
