#pragma once
// A rank's standard error: cut into lines, marked, and its end remembered.

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace sherd::launch {

/// Passes the lines of one rank on and keeps the last ones for the report of its death.
class LastWords {
 public:
  static constexpr std::size_t kKeptLines = 10;
  static constexpr std::size_t kLongestLine_bytes = 8192;  ///< longer ones are cut into several

  /// Whether a line is to be passed on; all are remembered.
  using Filter = std::function<bool(std::string_view line)>;

  /// `mark` is put before each line that is passed on.
  explicit LastWords(
      std::string mark, Filter passes = [](std::string_view) { return true; })
      : mark_(std::move(mark)), passes_(std::move(passes)) {}

  /// The lines that `bytes` completes, marked, each with its newline. The rest waits for its own.
  [[nodiscard]] std::string take(std::string_view bytes);
  /// What was left without a newline, as a line. Call it when the rank is gone.
  [[nodiscard]] std::string finish();
  /// The last lines, without mark and newline.
  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }

 private:
  [[nodiscard]] std::string complete();

  std::string mark_;
  Filter passes_;
  std::string partial_;
  std::deque<std::string> lines_;
};

}  // namespace sherd::launch
