#include "tests/in_process/captured.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <stdexcept>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/training.h"

namespace sherd::test {

namespace {

// The environment and the folder of a program, as long as it lives.
class InPlaceOfAProcess {
 public:
  explicit InPlaceOfAProcess(const Arguments& variables) : folder_(fs::current_path()) {
    for (char** variable = ::environ; variable != nullptr && *variable != nullptr; ++variable) {
      before_.emplace_back(*variable);
    }
    set(Arguments{"PATH=/usr/bin:/bin", "OMP_NUM_THREADS=1"} + variables);
    fs::current_path(SHERD_TEST_SOURCE_DIR);
  }
  ~InPlaceOfAProcess() {
    set(before_);
    fs::current_path(folder_);
  }
  InPlaceOfAProcess(const InPlaceOfAProcess&) = delete;
  InPlaceOfAProcess& operator=(const InPlaceOfAProcess&) = delete;

 private:
  static void set(const Arguments& variables) {
    ::clearenv();
    for (const std::string& variable : variables) {
      const std::size_t equals = variable.find('=');
      ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
    }
  }

  fs::path folder_;
  Arguments before_;
};

// What is written to a descriptor.
class Captured {
 public:
  explicit Captured(int descriptor)
      : descriptor_(descriptor),
        before_(::dup(descriptor)),
        file_(::memfd_create("captured", MFD_CLOEXEC)) {
    if (before_ < 0 || file_ < 0 || ::dup2(file_, descriptor_) < 0) {
      throw std::runtime_error("an output cannot be captured");
    }
  }
  ~Captured() {
    ::dup2(before_, descriptor_);
    ::close(before_);
    ::close(file_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  [[nodiscard]] std::string text() const {
    return read_file("/proc/self/fd/" + std::to_string(file_));
  }
  [[nodiscard]] int file() const { return file_; }
  [[nodiscard]] int before() const { return before_; }

 private:
  int descriptor_;
  int before_;
  int file_;
};

// Also from a signal's handler.
void copy(int file, int to) {
  std::array<char, 4096> bytes;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  ssize_t size = 0;
  for (off_t at = 0; (size = ::pread(file, bytes.data(), bytes.size(), at)) > 0; at += size) {
    if (::write(to, bytes.data(), static_cast<std::size_t>(size)) < 0) {
      return;
    }
  }
}

// Shows the outputs on standard error if the process dies by a signal, or `work` throws.
class ShownAtDeath {
 public:
  ShownAtDeath(const Captured& out, const Captured& err) {
    files_[0] = out.file();
    files_[1] = err.file();
    to_ = err.before();
    struct sigaction action = {};
    action.sa_handler = [](int signal) {
      show();
      ::raise(signal);  // ends the process once this handler has returned
    };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], &action, &before_[i]);
    }
  }
  ~ShownAtDeath() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], &before_[i], nullptr);
    }
    if (std::uncaught_exceptions() > exceptions_) {
      show();
    }
  }
  ShownAtDeath(const ShownAtDeath&) = delete;
  ShownAtDeath& operator=(const ShownAtDeath&) = delete;

 private:
  static constexpr std::array kSignals{SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM};

  static void show() {
    for (const std::atomic<int>& file : files_) {
      copy(file, to_);
    }
  }

  // A handler sees nothing but these; one program is captured at a time.
  static inline std::array<std::atomic<int>, 2> files_;  // NOLINT
  static inline std::atomic<int> to_;                    // NOLINT
  std::array<struct sigaction, kSignals.size()> before_ = {};
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

Ended captured(const Arguments& variables, const std::function<int()>& work) {
  const InPlaceOfAProcess process(variables);
  std::cout.flush();
  std::cerr.flush();
  Ended ended;
  const Captured out(STDOUT_FILENO);
  const Captured err(STDERR_FILENO);
  const ShownAtDeath shown(out, err);
  ended.code = work();
  std::cout.flush();
  std::cerr.flush();
  ended.out = out.text();
  ended.err = err.text();
  return ended;
}

}  // namespace sherd::test
