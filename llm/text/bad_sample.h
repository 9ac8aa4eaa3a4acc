#pragma once
// Samples of a data file that cannot be used, and what they lead to.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llm::text {

/// A sample that cannot be used, where it stands, and why.
struct BadSample {
  std::string source = {};  ///< the file
  std::string unit = {};    ///< what `place` is: "line", "record", "row", "place", "question"
  std::string place = {};   ///< a number from 1, a JSON pointer, or a question's id
  std::optional<std::int64_t> line = {};  ///< from 1, where known and not the place itself
  std::optional<std::int64_t> byte = {};  ///< of the fault, from 0 in the file, where known
  std::string reason = {};
  std::string content = {};  ///< the bytes that are bad, where they are few and UTF-8

  /// "line 3, byte 57: has no \"prompt\"", as it may be shown.
  [[nodiscard]] std::string text() const;
};

/// What bad samples lead to.
struct BadSamplePolicy {
  bool skip = false;                ///< leave them out; else the file is refused
  std::int64_t most_skipped = 100;  ///< of a data set; more are refused
};

/// Faults of a file as a message tells them: all counted, the first 20 kept.
class FaultList {
 public:
  static constexpr std::size_t kMostTold = 20;

  void add(std::string fault);
  /// Counts faults that nobody will read.
  void add_untold(std::int64_t faults) { count_ += faults; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// One as it is; of several how many, and the first, one a line.
  [[nodiscard]] std::string text() const;

 private:
  std::int64_t count_ = 0;
  std::vector<std::string> told_;
};

/// Gathers the bad samples of a data set. Memory: those that may be skipped, else the 20 that are
/// told, of each at most some KB.
class BadSamples {
 public:
  /// `name` is that of the data set, and the source of samples that have none; `earlier` were
  /// skipped of it before, and count.
  BadSamples(std::string name, const BadSamplePolicy& policy, std::vector<BadSample> earlier = {});

  /// Keeps the sample, with `content` if that is UTF-8 and at most 4 KiB. Throws
  /// sherd::Error(BadData) for one more than the policy allows to skip.
  void add(BadSample sample, std::string_view content = {});
  /// Counts samples that nobody will read.
  void add_untold(std::int64_t samples) { count_ += samples; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// Those that are kept, in the order in which they were added.
  [[nodiscard]] const std::vector<BadSample>& kept() const { return kept_; }
  /// The first one; there is one.
  [[nodiscard]] const BadSample& first() const { return kept_.front(); }
  /// What was skipped. Throws sherd::Error(BadData) that tells the samples where they may not be.
  [[nodiscard]] std::vector<BadSample> skipped() &&;

 private:
  // With its file, where that is not the data set.
  [[nodiscard]] std::string told(const BadSample& sample) const;

  std::string name_;
  BadSamplePolicy policy_;
  std::int64_t count_;
  std::size_t content_bytes_ = 0;
  std::vector<BadSample> kept_;
};

/// How to go on without correcting the file, after a list of faults.
[[nodiscard]] std::string advice_to_skip();

/// A line of JSON for each: source, line or record or place, byte, reason, and as `text` its
/// content.
[[nodiscard]] std::string to_jsonl(const std::vector<BadSample>& bad);

}  // namespace llm::text
