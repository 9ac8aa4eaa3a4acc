// Trackers that are slow, fail, or come back: nobody waits for them, and nothing is lost unsaid.

#include "llm/track/tracker_thread.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llm::track {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using Clock = std::chrono::steady_clock;

// What a tracker was told, kept beyond its end.
struct Told {
  std::mutex mutex;
  std::vector<std::int64_t> steps;
  std::vector<std::int64_t> begun;
  std::vector<End> ended;
};

// A tracker that keeps what it is told, and does `before` a call.
class Keeper final : public Tracker {
 public:
  explicit Keeper(
      std::shared_ptr<Told> told, std::function<void()> before = [] {})
      : told_(std::move(told)), before_(std::move(before)) {}

  [[nodiscard]] std::string name() const override { return "keeper"; }
  [[nodiscard]] std::string place() const override { return "here"; }
  void begin(std::int64_t steps_done) override {
    const std::lock_guard lock(told_->mutex);
    told_->begun.push_back(steps_done);
  }
  void log(std::span<const Point> points) override {
    before_();
    const std::lock_guard lock(told_->mutex);
    for (const Point& point : points) {
      told_->steps.push_back(point.step);
    }
  }
  void end(End how) override {
    const std::lock_guard lock(told_->mutex);
    told_->ended.push_back(how);
  }
  [[nodiscard]] std::string closing_words() const override { return "kept"; }
  [[nodiscard]] milliseconds patience(End /*how*/) const override { return milliseconds(2000); }

 private:
  std::shared_ptr<Told> told_;
  std::function<void()> before_;
};

const TrackerThread::Limits kQuick = {.first_pause = milliseconds(1),
                                      .longest_pause = milliseconds(2)};

std::vector<std::string> end(TrackerThread& thread, End how = End::Finished) {
  thread.ask_to_end(how);
  thread.wait_for_end();
  return thread.take_news();
}

TEST(TrackerThread, GivesAllPointsInTheirOrder) {
  const auto told = std::make_shared<Told>();
  TrackerThread thread(std::make_unique<Keeper>(told));
  thread.begin(4);
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 5; step < 300; ++step) {
    thread.push({step, 0, {}});
    steps.push_back(step);
  }
  EXPECT_THAT(end(thread, End::Stopped), ElementsAre("kept"));
  EXPECT_EQ(told->steps, steps);
  EXPECT_THAT(told->begun, ElementsAre(4));
  EXPECT_THAT(told->ended, ElementsAre(End::Stopped));
  EXPECT_THAT(end(thread), IsEmpty());  // once is enough
}

TEST(TrackerThread, WithoutPointsLeavesNothing) {
  const auto told = std::make_shared<Told>();
  TrackerThread thread(std::make_unique<Keeper>(told));
  thread.begin(0);
  EXPECT_THAT(end(thread), IsEmpty());
  EXPECT_THAT(told->begun, IsEmpty());
}

TEST(TrackerThread, ThatFailsIsToldOnceAndCounted) {
  const auto told = std::make_shared<Told>();
  TrackerThread thread(
      std::make_unique<Keeper>(told, [] { throw std::runtime_error("the disk is full"); }));
  for (std::int64_t step = 1; step <= 7; ++step) {
    thread.push({step, 0, {}});
  }
  EXPECT_THAT(end(thread),
              ElementsAre("tracker keeper: the disk is full; the run goes on without it",
                          "tracker keeper: 7 of 7 points were dropped", "kept"));
  EXPECT_THAT(told->ended, IsEmpty());
}

TEST(TrackerThread, ThatComesBackGetsWhatItMissed) {
  const auto told = std::make_shared<Told>();
  const auto calls = std::make_shared<std::atomic<int>>(0);
  TrackerThread thread(std::make_unique<Keeper>(told,
                                                [calls] {
                                                  if (++*calls < 4) {
                                                    throw TryLater("nobody answers");
                                                  }
                                                }),
                       kQuick);
  thread.push({1, 0, {}});
  while (*calls < 4) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  thread.push({2, 0, {}});
  EXPECT_THAT(end(thread),
              ElementsAre("tracker keeper: nobody answers; the run goes on, and what is missing is "
                          "sent later",
                          "kept"));
  EXPECT_THAT(told->steps, ElementsAre(1, 2));
}

TEST(TrackerThread, ThatIsNotThereIsNotWaitedFor) {
  const auto told = std::make_shared<Told>();
  TrackerThread thread(std::make_unique<Keeper>(told, [] { throw TryLater("nobody answers"); }));
  thread.push({1, 0, {}});
  std::this_thread::sleep_for(milliseconds(20));  // it pauses for a second now
  const auto start = Clock::now();
  EXPECT_THAT(end(thread), testing::Contains("tracker keeper: 1 of 1 points were dropped"));
  EXPECT_LT(Clock::now() - start, milliseconds(500));
}

TEST(TrackerThread, ThatIsSlowDropsWhatWaitsTooLong) {
  const auto told = std::make_shared<Told>();
  const auto go_on = std::make_shared<std::atomic<bool>>(false);
  const auto called = std::make_shared<std::atomic<bool>>(false);
  TrackerThread thread(std::make_unique<Keeper>(told,
                                                [go_on, called] {
                                                  *called = true;
                                                  while (!*go_on) {
                                                    std::this_thread::sleep_for(milliseconds(1));
                                                  }
                                                }),
                       {.waiting_points = 3});
  thread.push({1, 0, {}});
  while (!*called) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  const auto start = Clock::now();
  for (std::int64_t step = 2; step <= 10; ++step) {
    thread.push({step, 0, {}});
  }
  EXPECT_LT(Clock::now() - start, milliseconds(500));
  *go_on = true;
  EXPECT_THAT(end(thread), ElementsAre("tracker keeper: 6 of 10 points were dropped", "kept"));
  EXPECT_THAT(told->steps, ElementsAre(1, 2, 3, 4));
}

TEST(TrackerThread, ThatHangsIsLeftAlone) {
  const auto told = std::make_shared<Told>();
  const auto go_on = std::make_shared<std::atomic<bool>>(false);
  {
    TrackerThread thread(std::make_unique<Keeper>(told, [go_on] {
      while (!*go_on) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }));
    thread.push({1, 0, {}});
    EXPECT_THAT(end(thread), ElementsAre("tracker keeper: not waited for any longer, after 2 s",
                                         "tracker keeper: 1 of 1 points were dropped"));
  }
  *go_on = true;  // the thread ends without its object
}

}  // namespace
}  // namespace llm::track
