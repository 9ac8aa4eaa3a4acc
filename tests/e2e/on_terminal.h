#pragma once
// The program on a terminal.

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "tests/e2e/training.h"

namespace sherd::test {

/// A program of which an output, or everything, is a terminal.
class OnTerminal {
 public:
  enum class Output { Standard, Error, All };
  struct Size {
    unsigned short columns;
    unsigned short rows;
  };

  explicit OnTerminal(const Arguments& arguments, Output output = Output::Standard,
                      const Arguments& variables = {}, const Size& shown = {100, 30})
      : output_(output) {
    const winsize size{shown.rows, shown.columns, 0, 0};
    terminal_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_EQ(::grantpt(terminal_), 0);
    EXPECT_EQ(::unlockpt(terminal_), 0);
    EXPECT_EQ(::ioctl(terminal_, TIOCSWINSZ, &size), 0);
    std::array<char, 64> name{};
    EXPECT_EQ(::ptsname_r(terminal_, name.data(), name.size()), 0);
    program_ = std::make_unique<Program>(
        arguments, variables + Arguments{"TERM=xterm"},
        std::string("exec \"$0\" \"$@\" ") + redirection(output, name.data()));
  }
  ~OnTerminal() { ::close(terminal_); }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  /// All that it shows until it has shown `text`, or nothing for a long time.
  const std::string& wait_for(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (shown_.find(text) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
      read_some(100);
    }
    EXPECT_THAT(shown_, testing::HasSubstr(text));
    return shown_;
  }
  /// With what it has shown as that output.
  Ended finish() {
    // Its end is the end of the terminal's other side.
    while (read_some(20'000)) {
    }
    Ended ended = program_->finish();
    (output_ == Output::Error ? ended.err : ended.out) = shown_;
    return ended;
  }
  void signal(int number) { program_->signal(number); }
  /// With Output::All, what a user types; the terminal shows it.
  void type(const std::string& text) {
    EXPECT_EQ(::write(terminal_, text.data(), text.size()), std::ssize(text));
  }

 private:
  static std::string redirection(Output output, const std::string& name) {
    return output == Output::Standard ? "> " + name
           : output == Output::Error  ? "2> " + name
                                      : "< " + name + " > " + name + " 2>&1";
  }

  bool read_some(int milliseconds) {
    pollfd event{terminal_, POLLIN, 0};
    std::array<char, 4096> bytes{};
    if (::poll(&event, 1, milliseconds) <= 0) {
      return false;
    }
    const ssize_t size = ::read(terminal_, bytes.data(), bytes.size());
    shown_.append(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(0, size)));
    return size > 0;
  }

  Output output_;
  int terminal_ = -1;
  std::string shown_;
  std::unique_ptr<Program> program_;
};

}  // namespace sherd::test
