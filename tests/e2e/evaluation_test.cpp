// `sherd eval` on several ranks.

#include "tests/e2e/training.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

nlohmann::json evaluate(const Arguments& flags, int ranks) {
  const Arguments verb = Arguments{"eval", "--json", "--max-length", "128"} + flags;
  const Ended ended = expect_code(0, ranks == 0 ? verb : on_ranks(ranks, verb));
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 1) << ended.out;
  return nlohmann::json::parse(ended.out);
}

TEST(Evaluation, PrintsOneLineThatIsTheSameOnAnyWorldSize) {
  const Arguments flags = {"--model",  kModel,    "--data",
                           kQuestions, "--limit", "11",
                           "--batch",  "4",       "--max-answer-tokens",
                           "8"};
  const auto alone = evaluate(flags, 0);
  for (const char* key : {"loss", "em", "f1", "samples", "samples_per_second"}) {
    EXPECT_TRUE(alone.contains(key)) << key;
  }
  EXPECT_EQ(alone.at("samples"), 11);
  EXPECT_GT(alone.at("samples_per_second"), 0);
  const auto two = evaluate(flags, 2);
  EXPECT_NEAR(two.at("loss").get<double>(), alone.at("loss").get<double>(), 1e-6);
  EXPECT_EQ(two.at("em"), alone.at("em"));
  EXPECT_EQ(two.at("f1"), alone.at("f1"));
  EXPECT_EQ(two.at("samples"), alone.at("samples"));
}

TEST(Evaluation, SaysHowRanksExchange) {
  const Ended ended = expect_code(0, on_ranks(2, kEvaluation));
  EXPECT_THAT(ended.err, testing::HasSubstr("exchange between ranks: shared memory\n"));
}

void expect_disagreement(const Arguments& zero, const Arguments& one, const std::string& part) {
  const auto [first, second] = run_unlike_ranks(zero, one);
  EXPECT_EQ(first.code, 78) << first.err;
  EXPECT_EQ(second.code, 78) << second.err;
  EXPECT_THAT(first.err, testing::HasSubstr(part));
  EXPECT_THAT(second.err, testing::Not(testing::HasSubstr(part)));  // told once
}

TEST(Evaluation, OfRanksThatWereNotStartedAlikeEndsAndTellsWhatDiffers) {
  Arguments other = kEvaluation;
  other[8] = "2";
  expect_disagreement(kEvaluation, other, "--batch is 3 on rank 0 and 2 on rank 1");
  expect_disagreement(kEvaluation, kEvaluation + Arguments{"--dtype", "bfloat16"},
                      "--dtype is float32 on rank 0 and bfloat16 on rank 1");
  expect_disagreement(kEvaluation, kEvaluation + Arguments{"--max-answer-tokens", "9"},
                      "--max-answer-tokens is 32 on rank 0 and 9 on rank 1");
  const TempFolder folder;
  other = kEvaluation;
  other[4] = folder.write("questions.json", read_file(kQuestions) + "\n").string();
  expect_disagreement(kEvaluation, other, "the content of --data (SHA-256) is ");
}

TEST(Evaluation, OfRanksWithUnlikeProcessorsTakesTheLesserPath) {
  const auto [first, second] = run_unlike_ranks(kEvaluation, kEvaluation, {"SHERD_CPU_ISA=none"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(first.err, testing::HasSubstr("all ranks use the CPU path \"none\""));
  EXPECT_EQ(std::count(first.out.begin(), first.out.end(), '\n'), 1) << first.out;
}

}  // namespace
}  // namespace sherd::test
