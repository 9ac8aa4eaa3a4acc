#pragma once
// A rank's standard error: cut into lines, marked, and its end remembered.

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace sherd::launch {

/// Forwards the lines of one rank and keeps the last ones for the report of its death.
class LastWords {
 public:
  static constexpr std::size_t kKeptLines = 10;
  static constexpr std::size_t kLongestLine_bytes = 8192;  ///< longer ones are cut into several

  /// Decides whether a line is forwarded; all lines are remembered.
  using Filter = std::function<bool(std::string_view line)>;

  /// `mark` is put before each forwarded line.
  explicit LastWords(
      std::string mark, Filter passes = [](std::string_view) { return true; })
      : mark_(std::move(mark)), passes_(std::move(passes)) {}

  /// Returns the lines that `bytes` completes, marked, each with its newline; keeps the rest.
  [[nodiscard]] std::string take(std::string_view bytes);
  /// Returns the rest without a newline, as a line. Call it when the rank is gone.
  [[nodiscard]] std::string finish();
  /// Returns the last lines, without mark and newline.
  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }

 private:
  [[nodiscard]] std::string complete();

  std::string mark_;
  Filter passes_;
  std::string partial_;
  std::deque<std::string> lines_;
};

}  // namespace sherd::launch
