#include "app/chat_input.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include "files/system_text.h"
#include "sherd/error.h"

namespace app {

namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;
// A signal that comes just before poll() does not end it.
constexpr int kLookForInterruptsMs = 100;

std::atomic<bool>& interrupt_flag() {
  static std::atomic<bool> requested = false;
  return requested;
}

void request_interrupt(int /*signal*/) {
  interrupt_flag() = true;
}

}  // namespace

Interrupts::Interrupts() {
  interrupt_flag() = false;  // the handler finds it made
  struct sigaction action {};
  action.sa_handler = request_interrupt;
  ::sigaction(SIGINT, &action, &before_);
}

Interrupts::~Interrupts() {
  ::sigaction(SIGINT, &before_, nullptr);
}

bool Interrupts::requested() noexcept {
  return interrupt_flag();
}

bool Interrupts::take() noexcept {
  return interrupt_flag().exchange(false);
}

ChatInput::Read ChatInput::next(std::string& line) {
  while (true) {
    if (Interrupts::take()) {
      pending_.clear();
      return Read::Interrupted;
    }
    const std::size_t end = pending_.find('\n');
    const std::size_t length = std::min(end, pending_.size());
    if (length > kMaxLineBytes && !skips_line_) {
      skips_line_ = true;
      throw sherd::Error(sherd::ExitCode::BadData,
                         "the message has more than 1 MiB: send a shorter one");
    }
    const bool is_whole = end != std::string::npos || is_at_end_;
    if (is_at_end_ && pending_.empty()) {
      return Read::End;
    }
    if (is_whole || skips_line_) {
      line = pending_.substr(0, length);
      pending_.erase(0, end == std::string::npos ? end : end + 1);
    }
    if (is_whole && !std::exchange(skips_line_, false)) {
      return Read::Line;
    }
    if (is_whole) {
      continue;
    }
    is_at_end_ = !read_some();
  }
}

bool ChatInput::read_some() {
  pollfd event{STDIN_FILENO, POLLIN, 0};
  if (::poll(&event, 1, kLookForInterruptsMs) <= 0) {
    return true;
  }
  std::array<char, 4096> bytes{};
  const ssize_t size = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (size < 0 && errno != EINTR && errno != EAGAIN && errno != EIO) {  // EIO: the terminal is gone
    throw sherd::Error(sherd::ExitCode::StorageIo,
                       "standard input cannot be read: " + sherd::files::errno_text(errno));
  }
  if (size > 0) {
    pending_.append(bytes.data(), static_cast<std::size_t>(size));
  }
  return size > 0 || (size < 0 && errno != EIO);
}

}  // namespace app
