// When checkpoints and evaluations are made.

#include "tests/in_process/run_program.h"

namespace sherd::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::vector<std::string> checkpoints(const fs::path& output) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(output / "checkpoints")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<int> evaluated_steps(const fs::path& output) {
  std::vector<int> steps;
  std::ifstream file(output / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.value("event", "") == "evaluation") {
      steps.push_back(record.at("step").get<int>());
    }
  }
  return steps;
}

TEST(Cadence, OfAnEpochEndsItAlsoOnTwoRanks) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(
      0, on_ranks(2, train(output, "7")) +
             Arguments{"--data.eval", kQuestions, "--eval.every", "epoch", "--checkpoint.every",
                       "epoch", "--checkpoint.keep", "9", "--train.micro_batch", "6"});
  EXPECT_THAT(evaluated_steps(output), ElementsAre(3, 6, 7));
  EXPECT_THAT(checkpoints(output), ElementsAre("step-00000003", "step-00000006", "step-00000007"));
}

TEST(Cadence, OfATimeIsKeptByTheFirstRank) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, on_ranks(2, train(output, "5")) + Arguments{"--checkpoint.every", "1 ms",
                                                             "--checkpoint.keep", "9",
                                                             "--train.micro_batch", "6"});
  EXPECT_THAT(checkpoints(output), SizeIs(5));
}

TEST(Cadence, OfNeverLeavesTheEnd) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  expect_code(0, train(output, "4") + Arguments{"--checkpoint.every", "never"});
  EXPECT_THAT(checkpoints(output), ElementsAre("step-00000004"));
}

// The limit draws its questions; two sets count as one, each by its weight.
TEST(DataSets, AreDrawnFromAndMixed) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const Ended ended = expect_code(
      0, train(output, "2") + Arguments{"--data.train[0].limit", "20", "--data.train[1].path",
                                        kQuestions, "--data.train[1].weight", "0.5"});
  EXPECT_THAT(ended.out, HasSubstr("squad-32.json: 20 questions"));
  EXPECT_THAT(ended.out, HasSubstr("squad-32.json: 32 questions"));
  EXPECT_THAT(ended.out, HasSubstr("epochs of 3 steps"));  // 20 + 16 samples, 12 a step
  EXPECT_THAT(
      read_file(output / "config.toml"),
      HasSubstr("limit = 20\nlimit_order = \"random\"\nweight = 1.0\n\n[data.train.columns]"));
}

}  // namespace
}  // namespace sherd::test
