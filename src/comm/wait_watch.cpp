#include "comm/wait_watch.h"

#include <poll.h>

#include "files/quiet_thread.h"
#include "launch/rank_environment.h"
#include "sherd/error.h"

namespace sherd::detail {

namespace {

constexpr int kBetweenAborts_ms = 100;

}  // namespace

WaitWatch::WaitWatch() : stop_(launch::make_pipe()) {
  thread_ = files::start_quiet_thread([this] { watch(); });
}

WaitWatch::~WaitWatch() {
  stop_.write_end.close();
  thread_.join();
}

void WaitWatch::watch() {
  pollfd stopped{stop_.read_end.get(), POLLIN, 0};
  while (::poll(&stopped, 1, kBetweenAborts_ms) <= 0) {
    const std::lock_guard lock(mutex_);
    if (patience_ && patience_->is_over()) {
      for (const Work& work : *works_) {
        work->abort();
      }
    }
  }
}

void WaitWatch::await(const std::vector<Work>& works, const Patience& patience) {
  {
    const std::lock_guard lock(mutex_);
    patience_ = patience;
    works_ = &works;
  }
  struct End {
    WaitWatch& watch;
    ~End() {
      const std::lock_guard lock(watch.mutex_);
      watch.patience_.reset();
    }
  } const end{*this};
  for (const Work& work : works) {
    // Without a limit of its own it would end after the timeout that its group was connected with.
    if (!work->wait(launch::kLongestTimeout)) {
      throw Error(ExitCode::Hang, "no rank has made progress for the timeout");
    }
  }
}

}  // namespace sherd::detail
