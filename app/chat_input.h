#pragma once
// Lines that a user types, and the interrupt key.

#include <atomic>
#include <csignal>
#include <string>

namespace app {

/// Takes SIGINT as a request to stop what goes on, as long as it lives. One at a time per process.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  /// True after an interrupt that nobody has taken.
  [[nodiscard]] static bool requested() noexcept;
  /// Returns the same, and takes it.
  static bool take() noexcept;

 private:
  struct sigaction before_ {};
};

/// Standard input, line by line.
class ChatInput {
 public:
  enum class Read { Line, Interrupted, End };

  /// Blocks until there is a line, without its end, or an interrupt (Interrupts), which discards
  /// the begun line. Throws sherd::Error: BadData for a line of more than 1 MiB, which it passes
  /// over; StorageIo if standard input cannot be read.
  [[nodiscard]] Read next(std::string& line);

 private:
  // Returns false at the end of the input.
  bool read_some();

  std::string pending_;
  bool is_at_end_ = false;
  bool skips_line_ = false;  // the rest of a line that is too long
};

}  // namespace app
