#include "launch/peer_watch.h"

#include <array>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files/quiet_thread.h"
#include "launch/end_process.h"
#include "sherd/error.h"

namespace sherd::launch {
PeerWatch::PeerWatch(const RankEnvironment& environment) : rank_(environment.rank) {
  if (environment.supervisor_fd) {
    take_over_news(*environment.supervisor_fd);
  } else if (environment.ends_with_parent) {
    parent_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0)));
  }
  if (news_.get() < 0 && parent_.get() < 0) {
    return;
  }
  stop_ = make_pipe();
  thread_ = files::start_quiet_thread([this] { watch(); });
}

void PeerWatch::take_over_news(int fd) {
  struct stat kind {};
  if (::fstat(fd, &kind) != 0 || !(S_ISFIFO(kind.st_mode) || S_ISSOCK(kind.st_mode))) {
    throw Error(
        ExitCode::Usage,
        "SHERD_SUPERVISOR_FD=" + std::to_string(fd) +
            " is not a pipe of this process: unset it, or start the rank with sherd launch");
  }
  news_ = FileDescriptor(fd);
  ::fcntl(news_.get(), F_SETFD, FD_CLOEXEC);
  set_non_blocking(news_.get());
}

PeerWatch::~PeerWatch() {
  stop_.write_end.close();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void PeerWatch::await_loss(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  awaited_ = true;
  changed_.wait_for(lock, most, [this] { return lost_; });
}

void PeerWatch::outlive_peers() {
  const std::lock_guard lock(mutex_);
  awaited_ = true;
}

std::optional<std::chrono::seconds> PeerWatch::stop_within() {
  const std::lock_guard lock(mutex_);
  return stop_within_;
}

void PeerWatch::tell_save_seconds(double seconds) const {
  if (news_.get() >= 0) {
    write_all(news_.get(), std::string(kSaveTakes) + std::to_string(seconds) + "\n");
  }
}

// Leaves the first line that is no deadline.
void PeerWatch::take_deadlines(std::string& news) {
  while (news.starts_with(kStopWithin) && news.find('\n') != std::string::npos) {
    const std::lock_guard lock(mutex_);
    stop_within_ = std::chrono::seconds(std::atoll(news.c_str() + kStopWithin.size()));
    news.erase(0, news.find('\n') + 1);
  }
}

void PeerWatch::watch() {
  std::string news;
  bool launcher_gone = false;
  while (!launcher_gone && news.find('\n') == std::string::npos) {
    std::array<pollfd, 3> events{{{stop_.read_end.get(), POLLIN, 0},
                                  {news_.get(), POLLIN, 0},
                                  {parent_.get(), POLLIN, 0}}};  // poll passes over -1
    if (::poll(events.data(), events.size(), -1) <= 0) {
      continue;
    }
    if (events[0].revents != 0) {
      return;
    }
    if (events[1].revents != 0) {
      const Bytes bytes = read_available(news_.get());
      news += bytes.data;
      take_deadlines(news);
      launcher_gone = bytes.at_end;
    }
    launcher_gone = launcher_gone || events[2].revents != 0;
  }
  const std::lock_guard lock(mutex_);
  if (awaited_) {
    lost_ = true;
    changed_.notify_all();
    return;
  }
  const std::size_t end = news.find('\n');
  const std::string what = end != std::string::npos ? "peer lost: " + news.substr(0, end)
                           : parent_.get() >= 0
                               ? "launcher lost: the process that started this rank is gone"
                               : "launcher lost: sherd launch is gone";
  end_rank(what);
}

void PeerWatch::end_rank(const std::string& what) const {
  // The launcher marks the lines of all ranks but rank 0.
  const bool marked = news_.get() >= 0 && rank_ != 0;
  const std::string mark = marked ? "" : "[rank " + std::to_string(rank_) + "] ";
  end_process(mark + what + "; stopping (exit 76)", ExitCode::PeerLost);
}

}  // namespace sherd::launch
