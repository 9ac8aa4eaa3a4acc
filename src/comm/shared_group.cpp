#include "comm/shared_group.h"

#include <algorithm>
#include <climits>
#include <ctime>
#include <optional>
#include <utility>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launch/spinning.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;

// Longer than a wake takes, so that ranks in step do not sleep; short compared with what ranks
// compute.
constexpr std::chrono::microseconds kSpin{30};
constexpr int kPausesBetweenLooksAtTheClock = 32;
// The delay with which a rank that has ended is noticed.
constexpr std::chrono::milliseconds kSleep{100};

// Not FUTEX_PRIVATE_FLAG: the sleepers are other processes.
void futex(const std::atomic<uint32_t>& word, int operation, uint32_t value,
           const timespec* limit) {
  syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

// Lets the core's other thread run.
void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void SharedCounter::raise_to(uint32_t value) {
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    futex(value_, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void SharedCounter::sleep_until_raised(uint32_t value, std::chrono::nanoseconds limit) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = value_.load(std::memory_order_seq_cst);
  if (!reaches(seen, value)) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
    const timespec time{seconds.count(), (limit - seconds).count()};
    futex(value_, FUTEX_WAIT, seen, &time);
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

SharedGroup::SharedGroup(SharedRegion region, SharedGroupOptions options)
    : region_(std::move(region)),
      options_(std::move(options)),
      lines_(reinterpret_cast<Lines*>(region_.data())),
      spins_(options_.host_ranks <= launch::usable_cores()) {}

SharedGroup::~SharedGroup() {
  lines_[rank()].departed.store(1, std::memory_order_release);
}

bool SharedGroup::all_reached(CounterOf counter_of, uint32_t value) const {
  for (int member = 0; member < size(); ++member) {
    if (!counter_of(member).has_reached(value)) {
      return false;
    }
  }
  return true;
}

bool SharedGroup::spin_until_reached(const SharedCounter& counter, uint32_t value) const {
  if (!spins_) {
    return false;
  }
  const auto end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesBetweenLooksAtTheClock; ++i) {
      if (counter.has_reached(value)) {
        return true;
      }
      pause_briefly();
    }
  } while (Clock::now() < end);
  return false;
}

void SharedGroup::wait_for_all(CounterOf counter_of, uint32_t value, const Awaited& awaited) const {
  std::optional<Patience> patience;  // from the first sleep on
  std::optional<CurrentWait::Entry> waiting;
  for (int member = 0; member < size(); ++member) {
    SharedCounter& counter = counter_of(member);
    if (counter.has_reached(value) || spin_until_reached(counter, value)) {
      continue;
    }
    if (!patience) {
      patience.emplace(options_.notes.patience());
      waiting.emplace(options_.notes.board(), awaited.text());
    }
    while (!counter.has_reached(value)) {
      counter.sleep_until_raised(value,
                                 std::min<std::chrono::nanoseconds>(kSleep, options_.timeout));
      if (!counter.has_reached(value)) {
        const bool is_over = patience->is_over();
        check_members(counter_of, value, awaited, is_over ? &*patience : nullptr);
      }
    }
  }
}

void SharedGroup::check_members(CounterOf counter_of, uint32_t value, const Awaited& awaited,
                                const Patience* ended) const {
  if (cancelled_.load(std::memory_order_acquire)) {
    throw Error(ExitCode::PeerLost, awaited.text() + " was cancelled: " + why_);
  }
  std::string missing;
  std::vector<int> missing_ranks;
  bool hopeless = false;
  for (int member = 0; member < size(); ++member) {
    if (counter_of(member).has_reached(value)) {
      continue;
    }
    const bool has_left = lines_[member].departed.load(std::memory_order_acquire) != 0;
    const bool has_ended = !has_left && !options_.places[static_cast<size_t>(member)].is_alive();
    if (counter_of(member).has_reached(value)) {
      continue;  // it did so before it left
    }
    hopeless = hopeless || has_left || has_ended;
    missing_ranks.push_back(options_.ranks.rank_at(member));
    missing += (missing.empty() ? "" : ", ") + std::to_string(options_.ranks.rank_at(member)) +
               (has_left    ? " (has left)"
                : has_ended ? " (has ended)"
                            : "");
  }
  if (missing.empty()) {
    return;
  }
  const std::string what = awaited.text();
  if (hopeless) {
    options_.notes.note(what);
    throw Error(ExitCode::PeerLost,
                what + ": missing rank " + missing + ". Its own message says why.");
  }
  if (ended != nullptr) {
    const FailureNotes::Report others = options_.notes.report(what, Failure::TimedOut);
    throw Error(ExitCode::Hang,
                what + " timed out: missing rank " + missing + "." +
                    ended->last_work_of(missing_ranks) + others.store + others.elsewhere +
                    " Every rank must reach this collective; look at what they did instead.");
  }
}

void SharedGroup::gather_numbers(std::span<const double> mine, std::span<double> all) {
  for (size_t first = 0; first < mine.size(); first += kValues) {
    const size_t count = std::min(mine.size() - first, kValues);
    const uint32_t round = ++rounds_;
    const auto of_round = [&](int member) -> auto& {
      return lines_[member].values[round % 2];
    };
    std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(first), count, of_round(rank()).begin());
    lines_[rank()].entered.raise_to(round);
    wait_for_all([&](int member) -> SharedCounter& { return lines_[member].entered; }, round,
                 {"all-reduce"});
    for (int member = 0; member < size(); ++member) {
      std::copy_n(of_round(member).begin(), count,
                  all.data() + mine.size() * static_cast<size_t>(member) + first);
    }
  }
}

void SharedGroup::cancel(const std::string& why) {
  why_ = why;
  cancelled_.store(true, std::memory_order_release);
  lines_[rank()].departed.store(1, std::memory_order_release);
}

}  // namespace sherd::detail
