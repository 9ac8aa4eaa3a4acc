// A run that is stopped or refused before its first step ends at once.

#include <csignal>
#include <thread>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kManyQuestions = SHERD_TEST_SOURCE_DIR "/recipes/data/squad-1000-train.json";

TEST(EarlyFault, AFaultIsToldOnce) {
  const TempFolder folder;
  const Ended ended = expect_code(
      66, on_ranks(2, train(folder.path() / "run", "3") +
                          Arguments{"--train.micro_batch", "6", "--data.eval", "/no/such.json"}));
  const size_t first = ended.err.find("/no/such.json");
  ASSERT_NE(first, std::string::npos);
  EXPECT_THAT(ended.err, Not(HasSubstr("[rank 1] sherd:")));
}

TEST(StopAtStart, EndsAtOnceAndLeavesNothing) {
  const TempFolder folder;
  Arguments run = train(folder.path() / "run", "1000") + Arguments{"--data.cache", "none"};
  std::replace(run.begin(), run.end(), kQuestions, kManyQuestions);
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program(on_ranks(1, run));
    program.wait_for("model: ");  // before data and weights
    program.signal(signal);
    const Ended ended = program.finish();
    EXPECT_EQ(ended.code, 75) << ended.out << ended.err;
    EXPECT_LT(ended.seconds, 3);
    EXPECT_THAT(ended.out, HasSubstr("the same command starts over"));
    EXPECT_FALSE(fs::exists(folder.path() / "run"));
  }
}

TEST(StopAtStart, OfARunThatResumesSaysFromWhere) {
  const TempFolder folder;
  fs::create_directories(folder.path() / "run/checkpoints/step-00000010");
  folder.write("run/checkpoints/step-00000010/manifest.json", "{}");  // by names alone
  Arguments run = train(folder.path() / "run", "1000") + Arguments{"--data.cache", "none"};
  std::replace(run.begin(), run.end(), kQuestions, kManyQuestions);
  Program program(run);
  program.wait_for("model: ");
  program.signal(SIGINT);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 75) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("before the first step: no step was lost; the same command "
                                   "resumes from " +
                                   (folder.path() / "run/checkpoints/step-00000010").string()));
}

TEST(StopOfOtherVerbs, IsWhatTheSignalDoes) {
  const Arguments eval = {"eval", "--model", kModel, "--data", kManyQuestions};
  const Arguments bench = {"bench",   "--model", kModel,          "--seq", "512",
                           "--steps", "100000",  "--max-minutes", "none"};
  for (const Arguments& verb : {eval, on_ranks(2, eval), bench}) {
    Program program(verb);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    program.signal(SIGTERM);
    const Ended ended = program.finish();
    EXPECT_EQ(ended.code, 128 + SIGTERM) << verb.front() << ended.out << ended.err;
    EXPECT_LT(ended.seconds, 3) << verb.front();
  }
}

}  // namespace
}  // namespace sherd::test
