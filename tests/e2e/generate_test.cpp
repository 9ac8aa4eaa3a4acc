// `sherd generate` at a terminal, on several ranks, and where its output is lost.

#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/e2e/training.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Generate : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const TempFolder folder;
    expected_ =
        completions(expect_code(0, kGenerate + Arguments{"--prompts", prompts_file(folder)}).out);
  }
  TempFolder folder_;
  static inline std::vector<std::string> expected_;  // NOLINT
};

TEST_F(Generate, OnTwoRanksGivesTheSame) {
  const fs::path out = folder_.path() / "out.jsonl";
  const Ended ended =
      expect_code(0, kGenerate + Arguments{"-n", "2", "--prompts", prompts_file(folder_), "--batch",
                                           "2", "-o", out});
  EXPECT_EQ(ended.out, "");
  EXPECT_EQ(completions(read_file(out)), expected_);
}

TEST_F(Generate, OnTwoRanksDrawsTheSame) {
  const Arguments drawn =
      kGenerate + Arguments{"--temperature",       "1.5",     "--seed", "7", "--prompts",
                            prompts_file(folder_), "--batch", "2"};
  const auto alone = completions(expect_code(0, drawn).out);
  EXPECT_EQ(completions(expect_code(0, drawn + Arguments{"-n", "2"}).out), alone);
  EXPECT_NE(alone, expected_);
}

// The shell stands for a terminal's user.
TEST_F(Generate, AnswersLineByLineUntilTheEnd) {
  Program program(kGenerate, {}, "printf 'Tom\\n\\nThe dog\\n' | \"$0\" \"$@\"");
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, expected_[1] + "\n" + expected_[3] + "\n");
}

TEST_F(Generate, TellsOfALineThatIsTooLongAndGoesOn) {
  Program program({"generate", kModel, "--max-new-tokens", "500"}, {},
                  "(yes no | head -99 | tr '\\n' ' '; echo; echo Tom) | \"$0\" \"$@\"");
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("more than the model's context of 512"));
  EXPECT_NE(ended.out, "");
}

// What is lost is no success.
TEST_F(Generate, AndEvalSayThatTheirOutputIsLost) {
  const auto into = [](const std::string& to, const Arguments& verb) {
    return Program(verb, {}, "{ \"$0\" \"$@\"; echo code $? >&2; } " + to).finish();
  };
  const Arguments one = {"generate", kModel, "--max-new-tokens", "2", "--prompt", "Tom"};
  const Arguments eval = {"eval",    kModel, "--data",      kQuestions,
                          "--limit", "2",    "--loss-only", "--json"};
  for (const Arguments& verb : {one, eval, Arguments{"recipes", "ls"}}) {
    const Ended full = into("> /dev/full", verb);
    EXPECT_THAT(full.err, HasSubstr("cannot be written to: No space left on device"));
    EXPECT_THAT(full.err, HasSubstr("code 74"));
  }
  const Ended gone =
      into("| true", {"generate", kModel, "--prompts", prompts_file(folder_), "--batch", "1"});
  EXPECT_THAT(gone.err, HasSubstr("cannot be written to: Broken pipe"));
  EXPECT_THAT(gone.err, HasSubstr("code 74"));
  // A run outlives its terminal.
  const Ended run = into("> /dev/full", train(folder_.path() / "run", "1"));
  EXPECT_THAT(run.err, HasSubstr("code 0"));
}

TEST_F(Generate, ReadsNoPromptsFromTheTerminalOnSeveralRanks) {
  const Ended ended = expect_code(64, {"generate", kModel, "-n", "2"});
  EXPECT_THAT(ended.err, HasSubstr("several ranks cannot read prompts from the terminal"));
  EXPECT_EQ(ended.out, "");
}

}  // namespace
}  // namespace sherd::test
