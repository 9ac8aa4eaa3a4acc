#pragma once
// Samples of a data file that cannot be used, and what they lead to.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace llm::text {

/// A sample that cannot be used, where it stands, and why.
struct BadSample {
  std::string source;                ///< the file
  std::string unit;                  ///< what `place` is: "line", "record", "place"
  std::string place;                 ///< a number from 1, or a JSON pointer
  std::optional<std::int64_t> byte;  ///< of the fault, from 0 in the file, where known
  std::string reason;

  /// "line 3, byte 57: has no \"prompt\"".
  [[nodiscard]] std::string text() const;
};

/// What bad samples lead to.
struct BadSamplePolicy {
  bool skip = false;                ///< leave them out; else the file is refused
  std::int64_t most_skipped = 100;  ///< of a file; more are refused
};

/// What goes into the message that refuses a file, at most 20 of `faults`, one a line; "" where
/// there is none.
[[nodiscard]] std::string listed(const std::vector<std::string>& faults);

/// Throws sherd::Error(BadData) that tells `bad`, samples of `name`, unless the policy allows to
/// skip them.
void refuse_unless_skipped(const std::vector<BadSample>& bad, const std::string& name,
                           const BadSamplePolicy& policy);

/// Throws sherd::Error(BadData) where more were skipped than the policy allows.
void require_few(const std::vector<BadSample>& bad, const std::string& name,
                 const BadSamplePolicy& policy);

/// A line of JSON for each: source, line or record or place, byte, reason.
[[nodiscard]] std::string to_jsonl(const std::vector<BadSample>& bad);

}  // namespace llm::text
