// A run for the terminal: its curves, how far it is, whether somebody trains.

#include "llm/runs/run_view.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "files/file_descriptor.h"
#include "files/wrapped_text.h"
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
  // Two characters across and two down: four by eight dots. Points are at 0, 4, 6 and 7 from above.
  EXPECT_THAT(plot({{0, 8}, {1, 4}, {2, 2}, {3, 1}}, 2, 2),
              ElementsAre("        8 \u28b1\u2800", "        1 \u2808\u2886"));
}

TEST(Plot, ShowsTheMeanOfWhatFallsTogether) {
  EXPECT_THAT(plot({{0, 1}, {0, 3}, {1, 0}}, 1, 1), ElementsAre("        2 \u28b1"));
}

TEST(Plot, GoesStraightBetweenPoints) {
  // Four columns of dots, of which the middle ones have no point: from the top to the bottom.
  EXPECT_THAT(plot({{0, 4}, {9, 1}}, 2, 1), ElementsAre("        4 \u2811\u2884"));
  EXPECT_THAT(plot({{3, 7}}, 2, 1), ElementsAre("        7 \u2801\u2800"));  // no line of one
}

TEST(Plot, HasAnAxis) {
  EXPECT_EQ(plot_axis("step 1", "step 400", 20), "          step 1      step 400");
  EXPECT_EQ(plot_axis("step 1", "step 400", 3), "          step 1 step 400");
}

TEST(Plot, LeavesOutWhatIsNotFinite) {
  EXPECT_THAT(plot({{0, 1}, {1, NAN}, {2, 1}}, 1, 1), ElementsAre("        1 \u2809"));
  EXPECT_THAT(plot({{0, NAN}}, 4, 4), IsEmpty());
  EXPECT_THAT(plot({}, 4, 4), IsEmpty());
}

class View : public testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path run(const WrittenRun& run = {},
                                          const std::string& end = "") const {
    return run.write(folder_.path(), end);
  }

 private:
  TempFolder folder_;
};

TEST_F(View, HasTheStateTheLastStepCurvesAndEvaluations) {
  const auto folder = run();
  const std::string text = view_of(read_run(folder), RunState::Running, {.columns = 60});
  EXPECT_THAT(text, HasSubstr("first: , 1 rank on 1 host; running\n"));
  EXPECT_THAT(text, HasSubstr("step 4/"));
  EXPECT_THAT(text, HasSubstr("\ntraining loss\n        4 "));
  EXPECT_THAT(text, HasSubstr("\nevaluation loss\n      3.5 "));
  EXPECT_THAT(text, HasSubstr("step 4: dev.json loss 2.5000, EM 20.0, F1 25.0"));
  EXPECT_THAT(text, Not(HasSubstr("train_loss")));
  EXPECT_THAT(view_of(read_run(folder), RunState::Finished, {.columns = 60}),
              HasSubstr("\ntrain_loss 2.5"));
}

TEST_F(View, HasTheUtilizationOfTheLastStepWhereItIsKnown) {
  const auto of = [&](const std::string& more) {
    return view_of(read_run(run({.more_of_a_step = more})), RunState::Running, {.columns = 100});
  };
  EXPECT_THAT(of(R"(,"mfu":0.496)"), HasSubstr(" tok/s | mfu 49.6% | mem "));
  EXPECT_THAT(of(""), Not(HasSubstr("mfu")));
}

TEST_F(View, SaysHowLongWhatIsLeftTakes) {
  // Two epochs of two steps are asked for and done, so of four epochs half is.
  const auto folder = run();
  RunRecords records = read_run(folder);
  records.config.train.epochs = 4;
  const std::string text = view_of(records, RunState::Running, {.columns = 60});
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
  const std::string text = view_of(records, RunState::Running, {.columns = 60});
  EXPECT_THAT(text, HasSubstr("\nevaluation loss of dev.json\n      3.5 "));
  EXPECT_THAT(text, HasSubstr("step 4: train.json loss 99.0000"));
}

int rows_of(const std::string& text) {
  return 1 + static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

// The last line of a terminal is the cursor's.
TEST_F(View, FitsIntoItsRows) {
  const RunRecords records = read_run(run());
  for (const RunState state : {RunState::Running, RunState::Finished}) {
    EXPECT_GT(rows_of(view_of(records, state, {.columns = 80})), 40);
    for (const int rows : {8, 12, 24, 30, 40}) {
      const std::string text = view_of(records, state, {.columns = 80, .rows = rows});
      EXPECT_LT(rows_of(text), rows) << text;
      EXPECT_THAT(text, HasSubstr("step 4/"));
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        EXPECT_EQ(sherd::files::wrapped(line, 80), line);
      }
    }
  }
  EXPECT_THAT(view_of(records, RunState::Running, {.columns = 80, .rows = 24}),
              testing::AllOf(HasSubstr("\ntraining loss\n        4 "),
                             HasSubstr("\n          step 1 "), HasSubstr("\nevaluation loss\n"),
                             HasSubstr("step 4: dev.json"), Not(HasSubstr("peak memory"))));
}

TEST_F(View, SaysWhyARunHasFailed) {
  const auto folder =
      run({}, R"({"event":"end","step":4,"how":"failed","why":"the loss is NaN\nmore"})"
              "\n");
  EXPECT_THAT(view_of(read_run(folder), RunState::Failed, {.columns = 90}),
              HasSubstr("; failed: the loss is NaN\n"));
  EXPECT_THAT(view_of(read_run(run()), RunState::Failed, {.columns = 90}), HasSubstr("; failed\n"));
}

TEST_F(View, OfARunThatHasWrittenNothingYetSaysSo) {
  EXPECT_EQ(view_of_beginning("runs/first/"),
            "first: running\nno step yet: loading data and model");
}

TEST_F(View, OfARunWithoutAStepSaysSo) {
  RunRecords records = read_run(run());
  records.steps.clear();
  EXPECT_THAT(view_of(records, RunState::Stopped, {.columns = 60}),
              HasSubstr("stopped: the same command resumes\nno step yet"));
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
