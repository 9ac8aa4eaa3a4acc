#pragma once
// A child process under test, with its output in pipes and a deadline on every wait.

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"
#include "launch/exit_status.h"
#include "launch/pipes.h"

namespace sherd::launch::testing {

using std::chrono::seconds;
constexpr seconds kPatience{20};  ///< far above what any test needs

inline std::string actor() {
  return SHERD_TEST_BINARY_DIR "/tests/launch_test_rank";
}

/// How a child ended and what it, and all it started, printed.
struct Outcome {
  ExitStatus status;
  std::string out;
  std::string err;
};

class Child {
 public:
  /// `variables`: "NAME=value", added to an environment that holds nothing but PATH.
  explicit Child(std::vector<std::string> command, std::vector<std::string> variables = {}) {
    Pipe out = make_pipe();
    Pipe err = make_pipe();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out.write_end.get(), STDOUT_FILENO);
      ::dup2(err.write_end.get(), STDERR_FILENO);
      variables.emplace_back("PATH=/usr/bin:/bin");
      ::execve(command[0].c_str(), pointers(command).data(), pointers(variables).data());
      ::_exit(127);
    }
    out_ = std::move(out.read_end);
    err_ = std::move(err.read_end);
    set_non_blocking(out_.get());
    set_non_blocking(err_.get());
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  /// The next line of standard output.
  std::string line() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (outcome_.out.find('\n', read_) == std::string::npos && collect(deadline)) {
    }
    const std::size_t end = outcome_.out.find('\n', read_);
    if (end == std::string::npos) {
      ADD_FAILURE() << "no further line; so far: " << outcome_.out << outcome_.err;
      return "";
    }
    const std::string text = outcome_.out.substr(read_, end - read_);
    read_ = end + 1;
    return text;
  }

  /// The process ids of `count` ranks that have announced themselves, by rank.
  std::vector<pid_t> ranks(std::size_t count) {
    std::vector<pid_t> pids(count, -1);
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t rank = 0;
      int pid = -1;
      const std::string text = line();
      EXPECT_EQ(std::sscanf(text.c_str(), "rank %zu pid %d", &rank, &pid), 2) << text;
      pids.at(rank) = pid;
    }
    return pids;
  }

  /// Waits until nobody holds its output any more, which means that it and all its descendants are
  /// gone.
  Outcome finish(seconds limit = kPatience) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while ((out_.get() >= 0 || err_.get() >= 0) && collect(deadline)) {
    }
    if (out_.get() >= 0 || err_.get() >= 0) {
      ADD_FAILURE() << "somebody still runs after " << limit.count()
                    << " s; so far: " << outcome_.out << outcome_.err;
      ::kill(pid_, SIGKILL);
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    outcome_.status = ExitStatus::from_wait(status);
    return outcome_;
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> all;
    for (std::string& string : strings) {
      all.push_back(string.data());
    }
    all.push_back(nullptr);
    return all;
  }

  /// Waits for output; false at the deadline or at the end of both.
  bool collect(std::chrono::steady_clock::time_point deadline) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    std::array<pollfd, 2> events{{{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}}};
    if (left.count() <= 0 || (out_.get() < 0 && err_.get() < 0)) {
      return false;
    }
    ::poll(events.data(), events.size(), static_cast<int>(left.count()));
    for (auto [fd, text] : {std::pair{&out_, &outcome_.out}, std::pair{&err_, &outcome_.err}}) {
      if (fd->get() < 0) {
        continue;
      }
      const Bytes bytes = read_available(fd->get());
      *text += bytes.data;
      if (bytes.at_end) {
        fd->close();
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  FileDescriptor out_;
  FileDescriptor err_;
  Outcome outcome_;
  std::size_t read_ = 0;  // how much of the output `line` has given
};

}  // namespace sherd::launch::testing
