// What is said of work that takes long: a live line on a terminal, plain lines elsewhere.

#include "llm/track/progress.h"

#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llm::track {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;
using Clock = std::chrono::steady_clock;

// What was said, and when.
struct Heard {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::vector<Clock::time_point> times;

  void add(const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
    times.push_back(Clock::now());
  }
  std::size_t size() {
    const std::lock_guard lock(mutex);
    return lines.size();
  }
  std::vector<std::string> said() {
    const std::lock_guard lock(mutex);
    return lines;
  }
  void wait_for(std::size_t count) {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (size() < count && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
};

Output to(Heard& lines) {
  return {.say = [&](const std::string& line) { lines.add(line); }};
}

Output to(Heard& lines, Heard& live) {
  Output output = to(lines);
  output.show = [&](const std::string& text) { live.add(text); };
  return output;
}

const Progress::Times kOften = {
    .silence = milliseconds(200), .before_live = milliseconds(50), .refresh = milliseconds(20)};

TEST(Progress, NeverLetsAFileBeSilentForLong) {
  Heard lines;
  Progress progress(to(lines), kOften);
  const auto start = Clock::now();
  const Working working(&progress, "loading the model");
  lines.wait_for(3);
  EXPECT_THAT(lines.said(), testing::Each(StartsWith("loading the model … ")));
  Clock::time_point before = start;
  const std::lock_guard lock(lines.mutex);
  for (const Clock::time_point time : lines.times) {
    EXPECT_LT(time - before, kOften.silence + milliseconds(1000));  // of a busy machine
    before = time;
  }
}

TEST(Progress, LeavesLinesThatAreSaidAnywayAlone) {
  Heard lines;
  Progress progress(to(lines), {.silence = milliseconds(5'000)});
  const Working working(&progress, "training");
  for (int step = 0; step < 10; ++step) {
    std::this_thread::sleep_for(milliseconds(50));
    progress.say("step");
  }
  EXPECT_THAT(lines.said(), testing::Each("step"));
}

TEST(Progress, IsSilentWithoutWork) {
  Heard lines;
  Progress progress(to(lines), kOften);
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_THAT(lines.lines, IsEmpty());
}

TEST(Progress, TellsTheNewestWorkAndHowMuchOfItIsDone) {
  Heard lines;
  Progress progress(to(lines), kOften);
  const Working training(&progress, "training");
  {
    const Working evaluating(&progress, "evaluating");
    counted_in("questions", &progress)(12'000, 87'599);
    lines.wait_for(1);
  }
  progress.set("step 3/9");
  lines.wait_for(2);
  const std::vector<std::string> said = lines.said();
  EXPECT_THAT(said.front(), StartsWith("evaluating, 12,000 of 87,599 questions … "));
  EXPECT_THAT(said.back(), StartsWith("step 3/9 … "));
}

TEST(Progress, OnATerminalIsALiveLineThatLinesPush) {
  Heard lines;
  Heard live;
  {
    Progress progress(to(lines, live), kOften);
    const Working working(&progress, "loading");
    live.wait_for(2);
    progress.say("a line");
    live.wait_for(live.size() + 2);
  }
  EXPECT_THAT(lines.lines, ElementsAre("a line"));
  EXPECT_THAT(live.lines, testing::Contains("").Times(testing::Ge(1)));
  EXPECT_THAT(live.lines.front(), StartsWith("loading … "));
  EXPECT_EQ(live.lines.back(), "");  // nothing stays
}

TEST(Progress, OnATerminalLeavesShortWorkUnsaid) {
  Heard lines;
  Heard live;
  {
    Progress progress(to(lines, live), {.before_live = milliseconds(10'000)});
    const Working working(&progress, "loading");
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_THAT(live.lines, IsEmpty());
}

// What writes to the terminal by itself finds it without a live line, and may fail.
TEST(Progress, StepsAside) {
  Heard lines;
  Heard live;
  Progress progress(to(lines, live), kOften);
  const Working working(&progress, "generating");
  live.wait_for(1);
  progress.aside([&] { lines.add(live.said().back()); });
  EXPECT_THAT(lines.said(), ElementsAre(""));
  EXPECT_THROW(progress.aside([] { throw std::runtime_error("lost"); }), std::runtime_error);
  live.wait_for(live.size() + 2);  // it goes on
  EXPECT_THAT(live.said().back(), StartsWith("generating … "));
}

// A request to stop is told also where the reader of what is being written has stopped.
TEST(Progress, DoesNotWaitToStepAsideWhereItIsWriting) {
  Heard lines;
  Progress progress(to(lines), kOften);
  progress.aside([&] {
    std::thread([&] { EXPECT_FALSE(progress.try_aside([] { FAIL() << "called"; })); }).join();
  });
  int calls = 0;
  EXPECT_TRUE(progress.try_aside([&] { ++calls; }));
  EXPECT_EQ(calls, 1);
}

TEST(Progress, GivesWhatWorkGives) {
  Heard lines;
  Progress progress(to(lines), kOften);
  const auto work = [&] {
    lines.wait_for(1);
    return 7;
  };
  EXPECT_EQ(with_progress(&progress, "loading", work), 7);
  EXPECT_THAT(lines.said().front(), StartsWith("loading … "));
}

TEST(Progress, IsNoneOnOtherRanks) {
  const Working working(nullptr, "loading");
  counted_in("questions", nullptr)(1, 2);
  EXPECT_EQ(with_progress(nullptr, "loading", [] { return 7; }), 7);
}

}  // namespace
}  // namespace llm::track
