// A run for the terminal: its curves, how far it is, whether somebody trains.

#include "llm/runs/run_view.h"

#include <cmath>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "files/file_descriptor.h"
#include "llm/runs/plot.h"
#include "tests/llm/runs/written_run.h"
#include "tests/support/temp_folder.h"

namespace llm::runs {
namespace {

using sherd::test::TempFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Plot, IsDotsFromTheLargestValueToTheLeast) {
  // Two characters across and two down: four by eight dots, one of each point.
  EXPECT_THAT(plot({{0, 8}, {1, 4}, {2, 2}, {3, 1}}, 2, 2),
              ElementsAre("        8 \u2801\u2800", "        1 \u2808\u2884"));
}

TEST(Plot, ShowsTheMeanOfWhatFallsTogether) {
  EXPECT_THAT(plot({{0, 1}, {0, 3}, {1, 0}}, 1, 1), ElementsAre("        2 \u2881"));
}

TEST(Plot, LeavesOutWhatIsNotFinite) {
  EXPECT_THAT(plot({{0, 1}, {1, NAN}, {2, 1}}, 1, 1), ElementsAre("        1 \u2809"));
  EXPECT_THAT(plot({{0, NAN}}, 4, 4), IsEmpty());
  EXPECT_THAT(plot({}, 4, 4), IsEmpty());
}

class View : public testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path run(const WrittenRun& run = {}) const {
    return run.write(folder_.path());
  }

 private:
  TempFolder folder_;
};

TEST_F(View, HasTheStateTheLastStepCurvesAndEvaluations) {
  const auto folder = run();
  const std::string text = view_of(read_run(folder), RunState::Running, 60);
  EXPECT_THAT(text, HasSubstr("first: , 1 rank on 1 host; running\n"));
  EXPECT_THAT(text, HasSubstr("step 4/"));
  EXPECT_THAT(text, HasSubstr("\ntraining loss\n        4 "));
  EXPECT_THAT(text, HasSubstr("\nevaluation loss\n      3.5 "));
  EXPECT_THAT(text, HasSubstr("step 4: dev.json loss 2.5000, EM 20.0, F1 25.0"));
  EXPECT_THAT(text, Not(HasSubstr("train_loss")));
  EXPECT_THAT(view_of(read_run(folder), RunState::Finished, 60), HasSubstr("\ntrain_loss 2.5"));
}

TEST_F(View, SaysHowLongWhatIsLeftTakes) {
  // Two epochs of two steps are asked for and done, so of four epochs half is.
  const auto folder = run();
  RunRecords records = read_run(folder);
  records.config.train.epochs = 4;
  const std::string text = view_of(records, RunState::Running, 60);
  EXPECT_THAT(text, HasSubstr("  50 %\nstep 4/8 | "));
  EXPECT_THAT(text, HasSubstr("| eta 00:00:02 |"));  // four steps of half a second
}

// Of several files, the curve is of the first.
TEST_F(View, HasTheCurveOfOneEvaluatedFile) {
  RunRecords records = read_run(run());
  Evaluation other = records.evaluations.back();
  other.data = "train.json";
  other.set.index = 1;
  other.loss = 99;
  records.evaluations.push_back(other);
  const std::string text = view_of(records, RunState::Running, 60);
  EXPECT_THAT(text, HasSubstr("\nevaluation loss of dev.json\n      3.5 "));
  EXPECT_THAT(text, HasSubstr("step 4: train.json loss 99.0000"));
}

TEST_F(View, OfARunThatHasWrittenNothingYetSaysSo) {
  EXPECT_EQ(view_of_beginning("runs/first/"),
            "first: running\nno step yet: data and model are being read");
}

TEST_F(View, OfARunWithoutAStepSaysSo) {
  RunRecords records = read_run(run());
  records.steps.clear();
  EXPECT_THAT(view_of(records, RunState::Stopped, 60),
              HasSubstr("stopped: the same command goes on\nno step yet"));
}

TEST_F(View, KnowsWhetherSomebodyTrains) {
  const auto folder = run();
  EXPECT_EQ(state_of(folder), RunState::Stopped);
  std::ofstream(folder / "lock") << "left behind";
  EXPECT_EQ(state_of(folder), RunState::Stopped);
  {
    const sherd::files::FileDescriptor held(::open((folder / "lock").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(held.get(), LOCK_EX | LOCK_NB), 0);
    EXPECT_EQ(state_of(folder), RunState::Running);
  }
  std::ofstream(folder / "summary.json") << "{}";  // as earlier versions, of finished runs alone
  EXPECT_EQ(state_of(folder), RunState::Finished);
  std::ofstream(folder / "summary.json") << R"({"ended": "stopped"})";
  EXPECT_EQ(state_of(folder), RunState::Stopped);
  std::ofstream(folder / "summary.json") << R"({"ended": "failed"})";
  EXPECT_EQ(state_of(folder), RunState::Failed);
}

}  // namespace
}  // namespace llm::runs
