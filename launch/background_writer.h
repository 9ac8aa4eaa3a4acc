#pragma once
// Writes that never make the writer wait.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace sherd::launch {

/// Writes texts to a descriptor, in order, from a thread of its own: the reader may stall
/// (a pager, a stopped terminal) without stalling this process. SIGPIPE must be blocked or ignored.
class BackgroundWriter {
 public:
  /// `fd` is not taken over, and must stay open.
  explicit BackgroundWriter(int fd);
  /// Waits for nothing: what is not written by then may be lost; see `drain`.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  void push(std::string text);
  /// What has not been written yet.
  [[nodiscard]] std::size_t backlog_bytes() const;
  /// Returns when all is written, or nobody reads any more, or after `limit`.
  void drain(std::chrono::milliseconds limit);

 private:
  struct State;
  static void write_texts(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
};

}  // namespace sherd::launch
