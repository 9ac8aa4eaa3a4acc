#pragma once
// The real `sherd` as a process: started with arguments and environment, watched with a time limit.

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/ended.h"

namespace sherd::test {

/// A running program in a process group of its own, which is killed with this object. It runs in
/// the project's folder, with one thread and no environment but PATH and `variables`
/// ("NAME=value"), which may hold another PATH.
class Program {
 public:
  /// `line`: a command of the shell's in its place, which finds it as $0.
  explicit Program(Arguments arguments, Arguments variables = {}, const std::string& line = "") {
    arguments.insert(arguments.begin(), SHERD_TEST_BINARY_DIR "/bin/sherd");
    if (!line.empty()) {
      arguments.insert(arguments.begin(), {"/bin/sh", "-c", line});
    }
    variables.emplace_back("OMP_NUM_THREADS=1");
    const auto is_path = [](const std::string& one) { return one.starts_with("PATH="); };
    if (std::none_of(variables.begin(), variables.end(), is_path)) {
      variables.emplace_back("PATH=/usr/bin:/bin");
    }
    const auto [out_read, out_write] = make_pipe();
    const auto [err_read, err_write] = make_pipe();
    auto argv = pointers(arguments);
    auto envp = pointers(variables);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);
      ::dup2(out_write, STDOUT_FILENO);
      ::dup2(err_write, STDERR_FILENO);
      if (::chdir(SHERD_TEST_SOURCE_DIR) == 0) {
        ::execve(argv[0], argv.data(), envp.data());
      }
      ::_exit(127);
    }
    ::setpgid(pid_, pid_);
    ::close(out_write);
    ::close(err_write);
    streams_ = {Stream{out_read, {}}, Stream{err_read, {}}};
  }
  ~Program() {
    if (pid_ > 0) {
      ::kill(-pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    for (const Stream& stream : streams_) {
      if (stream.fd >= 0) {
        ::close(stream.fd);
      }
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  /// Sends a signal to `pid`, by default the program itself; the time of Ended counts from here.
  void signal(int number, pid_t pid = 0) {
    since_ = Clock::now();
    ::kill(pid == 0 ? pid_ : pid, number);
  }

  /// Waits until standard output holds `text`; throws if the program ends before, or time is up.
  void wait_for(const std::string& text, std::chrono::seconds limit = kPatience) {
    const auto deadline = Clock::now() + limit;
    while (streams_[0].text.find(text) == std::string::npos) {
      if (!collect(deadline)) {
        throw std::runtime_error("no '" + text + "' in: " + streams_[0].text + streams_[1].text);
      }
    }
  }

  /// The processes that the program has started: the ranks of a launcher, in their order.
  [[nodiscard]] std::vector<pid_t> children() const {
    const std::string id = std::to_string(pid_);
    std::vector<pid_t> pids;
    const int file = ::open(("/proc/" + id + "/task/" + id + "/children").c_str(), O_RDONLY);
    std::array<char, 1024> text{};
    const ssize_t size = ::read(file, text.data(), text.size() - 1);
    ::close(file);
    char* at = text.data();
    for (long pid = size > 0 ? std::strtol(at, &at, 10) : 0; pid > 0;
         pid = std::strtol(at, &at, 10)) {
      pids.push_back(static_cast<pid_t>(pid));
    }
    return pids;
  }

  /// Waits until nobody holds its output any more: it and all that it started are gone.
  Ended finish(std::chrono::seconds limit = kPatience) {
    const auto deadline = Clock::now() + limit;
    while (collect(deadline)) {
    }
    Ended ended;
    ended.in_time = streams_[0].fd < 0 && streams_[1].fd < 0;
    if (!ended.in_time) {
      ::kill(-pid_, SIGKILL);
    }
    ended.seconds = std::chrono::duration<double>(Clock::now() - since_).count();
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    ended.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    ended.out = streams_[0].text;
    ended.err = streams_[1].text;
    return ended;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPatience{90};  // far above what any test needs

  struct Stream {
    int fd = -1;
    std::string text;
  };

  static std::pair<int, int> make_pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    }
    return {ends[0], ends[1]};
  }

  static std::vector<char*> pointers(Arguments& strings) {
    std::vector<char*> all;
    for (std::string& string : strings) {
      all.push_back(string.data());
    }
    all.push_back(nullptr);
    return all;
  }

  // Waits for output; false at the deadline or at the end of both streams.
  bool collect(Clock::time_point deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || (streams_[0].fd < 0 && streams_[1].fd < 0)) {
      return false;
    }
    std::array<pollfd, 2> events{{{streams_[0].fd, POLLIN, 0}, {streams_[1].fd, POLLIN, 0}}};
    ::poll(events.data(), events.size(), static_cast<int>(left.count()));
    for (size_t i = 0; i < events.size(); ++i) {
      if (events[i].revents != 0) {
        read_some(streams_[i]);
      }
    }
    return true;
  }

  static void read_some(Stream& stream) {
    std::array<char, 4096> bytes{};
    const ssize_t size = ::read(stream.fd, bytes.data(), bytes.size());
    if (size > 0) {
      stream.text.append(bytes.data(), static_cast<size_t>(size));
    } else if (size == 0 || errno != EINTR) {
      ::close(std::exchange(stream.fd, -1));
    }
  }

  pid_t pid_ = -1;
  std::array<Stream, 2> streams_;
  Clock::time_point since_ = Clock::now();
};

inline Ended run_program(const Arguments& arguments, const Arguments& variables) {
  return Program(arguments, variables).finish();
}

}  // namespace sherd::test
