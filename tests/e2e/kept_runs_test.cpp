// No run is lost where its process is killed, its output folder is removed, or a second one begins.

#include <algorithm>
#include <csignal>

#include "tests/e2e/training.h"
#include "tests/support/evaluations.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

TEST(LastEvaluation, ThatIsKilledLosesNoStep) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Arguments run = train(output, "2") + kGenerating;
  std::replace(run.begin(), run.end(), std::string("128"),
               std::string("512"));  // its questions are longer
  Program program(run);
  program.wait_for("evaluating ");  // the answers take seconds
  program.signal(SIGKILL);
  EXPECT_EQ(program.finish().code, 128 + SIGKILL);
  EXPECT_TRUE(fs::exists(output / "checkpoints/step-00000002/manifest.json"));
}

TEST(OutputLock, KeepsASecondRunOutAndNamesTheFirst) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program first(train(output, "5000"));
  first.wait_for("step 2/");
  const Ended second = expect_code(73, train(output, "5000"));
  EXPECT_THAT(second.err, HasSubstr("is locked by another run"));
  EXPECT_THAT(second.err, HasSubstr("process " + std::to_string(first.pid()) + " on host "));
  EXPECT_THAT(second.err, HasSubstr("train.output"));
  first.signal(SIGTERM);
  const Ended stopped = first.finish();
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_FALSE(fs::exists(output / "lock"));
}

TEST(OutputLock, OfAKilledProcessLocksNobodyOut) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program first(train(output, "5000") + Arguments{"--checkpoint.every_steps", "1"});
  first.wait_for("checkpoint ");
  first.signal(SIGKILL);
  first.finish();
  EXPECT_TRUE(fs::exists(output / "lock"));
  Program second(train(output, "5000"));
  second.wait_for("resumed from");
}

TEST(RemovedOutput, EndsTheRun) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  Program program(train(output, "5000"));
  program.wait_for("step 2/");
  fs::remove_all(output);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 74) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("was removed or replaced during the run"));
}

}  // namespace
}  // namespace sherd::test
