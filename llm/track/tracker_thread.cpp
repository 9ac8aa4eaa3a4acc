#include "llm/track/tracker_thread.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "files/quiet_thread.h"

namespace llm::track {

namespace {

using std::chrono::milliseconds;

constexpr std::size_t kBatchPoints = 50;  // of about ten metrics: a request takes 1,000

}  // namespace

struct TrackerThread::State {
  State(std::unique_ptr<Tracker> given, Limits given_limits)
      : tracker(std::move(given)), limits(given_limits) {}

  // Calls the tracker until it succeeds. False: it never will.
  bool make(const std::function<void()>& call);
  // Points that can be given; empty at the end.
  std::vector<Point> next();
  // How the run ended; nothing where nobody waits for the tracker any more.
  std::optional<End> asked_end();
  void note_failure(const std::string& why);                // the call is made again
  void note_giving_up(const std::string& why);              // it is not
  bool is_to_end() { return how.has_value() || given_up; }  // with the mutex held
  void drop_waiting();                                      // the same

  const std::unique_ptr<Tracker> tracker;  // of the thread
  const Limits limits;
  std::int64_t steps_done = 0;  // set before the thread is there
  EarlierPoints earlier;        // the same
  std::mutex mutex;             // over all below
  std::condition_variable changed;
  std::vector<Point> waiting;
  std::size_t giving = 0;  // points that the tracker is at
  std::optional<End> how;  // once the end is asked for
  bool started = false;
  bool given_up = false;   // by the thread, or on the thread
  bool done = false;       // the thread is
  bool abandoned = false;  // the thread was not waited for
  bool told_failure = false;
  bool told_giving_up = false;
  bool told_end = false;
  std::int64_t pushed = 0;
  std::int64_t dropped = 0;
  std::vector<std::string> news;
};

TrackerThread::TrackerThread(std::unique_ptr<Tracker> tracker, Limits limits)
    : state_(std::make_shared<State>(std::move(tracker), limits)) {}

TrackerThread::~TrackerThread() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->given_up = true;
    state_->tracker->abandon();
    state_->changed.notify_all();
  }
  if (thread_.joinable()) {
    thread_.detach();
  }
}

void TrackerThread::begin(std::int64_t steps_done, EarlierPoints earlier) {
  state_->steps_done = steps_done;
  state_->earlier = std::move(earlier);
}

void TrackerThread::start() {
  try {
    thread_ = sherd::files::start_quiet_thread([state = state_] { work(state); });
  } catch (const std::system_error& error) {
    state_->news.push_back(
        fmt::format("tracker {}: no thread for it: {}; the run continues without it",
                    state_->tracker->name(), error.what()));
    state_->given_up = true;
    state_->done = true;
  }
}

void TrackerThread::push(Point point) {
  const std::lock_guard lock(state_->mutex);
  if (!std::exchange(state_->started, true)) {
    start();
  }
  ++state_->pushed;
  if (state_->given_up || state_->waiting.size() >= state_->limits.waiting_points) {
    ++state_->dropped;
    return;
  }
  state_->waiting.push_back(std::move(point));
  state_->changed.notify_all();
}

void TrackerThread::ask_to_end(End how) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->how) {
    state_->how = how;
    state_->changed.notify_all();
  }
}

void TrackerThread::wait_for_end(std::chrono::steady_clock::time_point asked) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const auto is_done = [&] { return state.done; };
  if (state.started && !state.done && !state.abandoned) {
    const milliseconds patience = state.tracker->patience(state.how.value_or(End::Failed));
    if (!state.changed.wait_until(lock, asked + patience, is_done)) {
      state.given_up = true;
      state.abandoned = true;
      state.drop_waiting();
      state.news.push_back(fmt::format("tracker {}: no longer waited for, after {} s",
                                       state.tracker->name(), patience.count() / 1000));
      state.tracker->abandon();
      state.changed.notify_all();
      state.changed.wait_for(lock, state.limits.grace, is_done);
    }
  }
  const bool can_join = state.done && thread_.joinable();
  lock.unlock();
  if (can_join) {
    thread_.join();
  }
}

std::vector<std::string> TrackerThread::take_news() {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  std::vector<std::string> lines = std::exchange(state.news, {});
  if (state.how && !std::exchange(state.told_end, true)) {
    if (state.dropped > 0) {
      lines.push_back(fmt::format("tracker {}: {} of {} points were dropped", state.tracker->name(),
                                  state.dropped, state.pushed));
    }
    const std::string words = state.done ? state.tracker->closing_words() : "";
    if (!words.empty()) {
      lines.push_back(words);
    }
  }
  return lines;
}

void TrackerThread::work(const std::shared_ptr<State>& state) {
  Tracker& tracker = *state->tracker;
  bool works = state->make([&] { tracker.begin(state->steps_done, state->earlier); });
  while (works) {
    const std::vector<Point> points = state->next();
    if (points.empty()) {
      break;
    }
    works = state->make([&] { tracker.log(points); });
  }
  if (const std::optional<End> how = state->asked_end(); works && how) {
    state->make([&] { tracker.end(*how); });
  }
  const std::lock_guard lock(state->mutex);
  state->given_up = true;
  state->drop_waiting();
  state->done = true;
  state->changed.notify_all();
}

bool TrackerThread::State::make(const std::function<void()>& call) {
  std::string why;
  int tries_at_end = 0;
  for (milliseconds pause = limits.first_pause;;
       pause = std::min(2 * pause, limits.longest_pause)) {
    const bool at_end = [&] {
      const std::lock_guard lock(mutex);
      return how.has_value();
    }();
    pause = at_end ? limits.first_pause : pause;
    try {
      call();
      const std::lock_guard lock(mutex);
      giving = 0;
      return true;
    } catch (const TryLater& later) {
      why = later.what();
    } catch (const std::exception& error) {
      note_giving_up(error.what());
      return false;
    }
    // No run waits long at its end for a server that is not there.
    if (at_end && ++tries_at_end >= limits.last_tries) {
      note_giving_up(why);
      return false;
    }
    note_failure(why);
    std::unique_lock lock(mutex);
    changed.wait_for(lock, pause, [&] { return at_end ? given_up : is_to_end(); });
    if (given_up) {
      return false;
    }
  }
}

std::vector<Point> TrackerThread::State::next() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return !waiting.empty() || how || given_up; });
  if (given_up) {
    return {};
  }
  const auto count = static_cast<std::ptrdiff_t>(std::min(waiting.size(), kBatchPoints));
  std::vector<Point> points(std::make_move_iterator(waiting.begin()),
                            std::make_move_iterator(waiting.begin() + count));
  waiting.erase(waiting.begin(), waiting.begin() + count);
  giving = points.size();
  return points;
}

std::optional<End> TrackerThread::State::asked_end() {
  const std::lock_guard lock(mutex);
  return given_up ? std::nullopt : how;
}

void TrackerThread::State::note_failure(const std::string& why) {
  const std::lock_guard lock(mutex);
  if (!how && !std::exchange(told_failure, true)) {
    news.push_back(
        fmt::format("tracker {}: {}; the run continues, and missing points are sent later",
                    tracker->name(), why));
  }
}

void TrackerThread::State::note_giving_up(const std::string& why) {
  const std::lock_guard lock(mutex);
  if (!given_up && !std::exchange(told_giving_up, true)) {
    news.push_back(fmt::format(
        "tracker {}: {}; {}", tracker->name(), why,
        how ? "points that it has not accepted are lost" : "the run continues without it"));
  }
  given_up = true;
}

void TrackerThread::State::drop_waiting() {
  dropped += static_cast<std::int64_t>(waiting.size() + std::exchange(giving, 0));
  waiting.clear();
}

}  // namespace llm::track
