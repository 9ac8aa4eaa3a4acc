#include "launch/peer_watch.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sherd/error.h"

namespace sherd::launch {

PeerWatch::PeerWatch(const RankEnvironment& environment) : rank_(environment.rank) {
  if (!environment.supervisor_fd) {
    return;
  }
  struct stat kind {};
  if (::fstat(*environment.supervisor_fd, &kind) != 0 || !S_ISFIFO(kind.st_mode)) {
    throw Error(ExitCode::Usage,
                "SHERD_SUPERVISOR_FD=" + std::to_string(*environment.supervisor_fd) +
                    " is no pipe of this process: unset it, or start the rank "
                    "with sherd launch");
  }
  news_ = FileDescriptor(*environment.supervisor_fd);
  ::fcntl(news_.get(), F_SETFD, FD_CLOEXEC);
  set_non_blocking(news_.get());
  stop_ = make_pipe();
  // The thread must take no signal from the main thread, whose waits a stop request is to
  // interrupt.
  sigset_t all;
  sigset_t previous;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &previous);
  thread_ = std::thread([this] { watch(); });
  ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

PeerWatch::~PeerWatch() {
  stop_.write_end.close();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void PeerWatch::watch() const {
  std::string news;
  bool launcher_gone = false;
  while (!launcher_gone && news.find('\n') == std::string::npos) {
    std::array<pollfd, 2> events{{{stop_.read_end.get(), POLLIN, 0}, {news_.get(), POLLIN, 0}}};
    const int ready = ::poll(events.data(), events.size(), -1);
    if (ready > 0 && events[0].revents != 0) {
      return;
    }
    if (ready > 0) {
      const Bytes bytes = read_available(news_.get());
      news += bytes.data;
      launcher_gone = bytes.at_end;
    }
  }
  const std::size_t end = news.find('\n');
  const std::string what = end == std::string::npos ? "launcher lost: sherd launch is gone"
                                                    : "peer lost: " + news.substr(0, end);
  // The launcher marks the lines of all ranks but rank 0.
  write_all(STDERR_FILENO, (rank_ == 0 ? "[rank 0] " : "") + what + "; stopping (exit 76)\n");
  ::_exit(static_cast<int>(ExitCode::PeerLost));
}

}  // namespace sherd::launch
