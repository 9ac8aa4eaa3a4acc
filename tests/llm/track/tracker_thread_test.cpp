// Trackers that are slow, fail, or come back: nobody waits for them, and nothing is lost unsaid.

#include "llm/track/tracker_thread.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

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
  void begin(std::int64_t steps_done, const EarlierPoints& /*earlier*/) override {
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
  std::vector<std::string> news;
  while (news.empty()) {
    std::this_thread::sleep_for(milliseconds(1));
    news = thread.take_news();
  }
  EXPECT_THAT(news, ElementsAre("tracker keeper: the disk is full; the run continues without it"));
  EXPECT_THAT(end(thread), ElementsAre("tracker keeper: 7 of 7 points were dropped", "kept"));
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
  EXPECT_THAT(
      end(thread),
      ElementsAre(
          "tracker keeper: nobody answers; the run continues, and missing points are sent later",
          "kept"));
  EXPECT_THAT(told->steps, ElementsAre(1, 2));
}

TEST(TrackerThread, ThatIsNotThereIsNotWaitedFor) {
  const auto told = std::make_shared<Told>();
  TrackerThread thread(std::make_unique<Keeper>(told, [] { throw TryLater("nobody answers"); }));
  thread.push({1, 0, {}});
  std::vector<std::string> news;
  while (news.empty()) {  // it pauses for a second then
    std::this_thread::sleep_for(milliseconds(1));
    news = thread.take_news();
  }
  EXPECT_THAT(
      news,
      ElementsAre(
          "tracker keeper: nobody answers; the run continues, and missing points are sent later"));
  const auto start = Clock::now();
  EXPECT_THAT(
      end(thread),
      ElementsAre("tracker keeper: nobody answers; points that it has not accepted are lost",
                  "tracker keeper: 1 of 1 points were dropped", "kept"));
  EXPECT_LT(Clock::now() - start, milliseconds(5000));  // tried at once, and after a second
}

// What it could not take before, it is given once more.
TEST(TrackerThread, InItsPauseIsAskedOnceMoreAtTheEnd) {
  const auto told = std::make_shared<Told>();
  const auto answers = std::make_shared<std::atomic<bool>>(false);
  TrackerThread thread(std::make_unique<Keeper>(told,
                                                [answers] {
                                                  if (!*answers) {
                                                    throw TryLater("nobody answers");
                                                  }
                                                }),
                       {.first_pause = milliseconds(60'000)});
  thread.push({1, 0, {}});
  while (thread.take_news().empty()) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  *answers = true;
  thread.push({2, 0, {}});
  EXPECT_THAT(end(thread), ElementsAre("kept"));
  EXPECT_THAT(told->steps, ElementsAre(1, 2));
  EXPECT_THAT(told->ended, ElementsAre(End::Finished));
}

// A server that is busy for one request at the end loses nothing.
TEST(TrackerThread, IsTriedAgainAtTheEnd) {
  const auto told = std::make_shared<Told>();
  const auto asked = std::make_shared<std::atomic<bool>>(false);
  const auto refusals = std::make_shared<std::atomic<int>>(0);
  TrackerThread thread(std::make_unique<Keeper>(told,
                                                [asked, refusals] {
                                                  while (!*asked) {
                                                    std::this_thread::sleep_for(milliseconds(1));
                                                  }
                                                  if ((*refusals)++ == 0) {
                                                    throw TryLater("503");
                                                  }
                                                }),
                       kQuick);
  thread.push({1, 0, {}});
  thread.ask_to_end(End::Finished);
  *asked = true;
  EXPECT_THAT(end(thread), ElementsAre("kept"));
  EXPECT_THAT(told->steps, ElementsAre(1));
}

// Where threads are not to be had (a stack of this size cannot be), the run goes on.
TEST(TrackerThread, WithoutAThreadIsToldOnceAndCounted) {
  pthread_attr_t usual;
  pthread_attr_t huge;
  ASSERT_EQ(::pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(::pthread_attr_init(&huge), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 47U), 0);
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  sigset_t before;
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const auto told = std::make_shared<Told>();
  TrackerThread thread(std::make_unique<Keeper>(told));
  thread.push({1, 0, {}});
  thread.push({2, 0, {}});
  ::pthread_setattr_default_np(&usual);
  EXPECT_THAT(end(thread), ElementsAre(testing::StartsWith("tracker keeper: no thread for it: "),
                                       "tracker keeper: 2 of 2 points were dropped", "kept"));
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
  ::pthread_attr_destroy(&usual);
  ::pthread_attr_destroy(&huge);
}

// Two that hang are waited for at the same time, each from the moment the end was asked for.
TEST(TrackerThread, IsWaitedForFromTheMomentOfAsking) {
  const auto go_on = std::make_shared<std::atomic<bool>>(false);
  const auto hang = [go_on] {
    while (!*go_on) {
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  TrackerThread one(std::make_unique<Keeper>(std::make_shared<Told>(), hang),
                    {.grace = milliseconds(1)});
  TrackerThread other(std::make_unique<Keeper>(std::make_shared<Told>(), hang),
                      {.grace = milliseconds(1)});
  const auto asked = Clock::now();
  for (TrackerThread* const thread : {&one, &other}) {
    thread->push({1, 0, {}});
    thread->ask_to_end(End::Finished);
  }
  for (TrackerThread* const thread : {&one, &other}) {
    thread->wait_for_end(asked);
  }
  EXPECT_LT(Clock::now() - asked, milliseconds(3500));  // not twice the patience of 2 s
  *go_on = true;
}

// A tracker that listens is no longer there when nobody waits for it any more.
TEST(TrackerThread, ThatListensEndsWhenItIsAbandoned) {
  class Listener final : public Tracker {
   public:
    explicit Listener(std::shared_ptr<std::atomic<bool>> is_gone) : is_gone_(std::move(is_gone)) {}
    [[nodiscard]] std::string name() const override { return "listener"; }
    [[nodiscard]] std::string place() const override { return "here"; }
    void begin(std::int64_t /*steps_done*/, const EarlierPoints& /*earlier*/) override {
      while (!is_abandoned()) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      *is_gone_ = true;
      throw TryLater("cancelled");
    }
    void log(std::span<const Point> /*points*/) override {}
    void end(End /*how*/) override {}
    [[nodiscard]] milliseconds patience(End /*how*/) const override { return milliseconds(50); }

   private:
    std::shared_ptr<std::atomic<bool>> is_gone_;
  };
  const auto is_gone = std::make_shared<std::atomic<bool>>(false);
  TrackerThread thread(std::make_unique<Listener>(is_gone));
  thread.push({1, 0, {}});
  EXPECT_THAT(end(thread), ElementsAre("tracker listener: no longer waited for, after 0 s",
                                       "tracker listener: 1 of 1 points were dropped"));
  EXPECT_TRUE(*is_gone);
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
    TrackerThread thread(std::make_unique<Keeper>(told,
                                                  [go_on] {
                                                    while (!*go_on) {
                                                      std::this_thread::sleep_for(milliseconds(1));
                                                    }
                                                  }),
                         {.grace = milliseconds(1)});
    thread.push({1, 0, {}});
    EXPECT_THAT(end(thread), ElementsAre("tracker keeper: no longer waited for, after 2 s",
                                         "tracker keeper: 1 of 1 points were dropped"));
  }
  *go_on = true;  // the thread ends without its object
}

}  // namespace
}  // namespace llm::track
