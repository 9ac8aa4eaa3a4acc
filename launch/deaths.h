#pragma once
// Ranks that ended abnormally, and which of them caused the others to end.

#include <string>
#include <vector>

#include "launch/exit_status.h"

namespace sherd::launch {

/// A rank that was killed, or exited with a code that means a failure.
struct Death {
  int rank = 0;
  ExitStatus status;

  /// "rank 1 was killed by signal 9 (SIGKILL)".
  [[nodiscard]] std::string text() const;
  /// Whether it ended because of another rank.
  [[nodiscard]] bool is_survivor() const;
};

/// All of them, in the order in which they were seen.
class Deaths {
 public:
  /// Adds deaths seen at the same moment. Among them a kill counts as the cause, since it comes
  /// from outside, whereas an exit may be the reaction to a lost connection.
  void add(std::vector<Death> fresh);
  [[nodiscard]] bool empty() const { return all_.empty(); }
  /// The first; there must be one.
  [[nodiscard]] const Death& first() const { return all_.front(); }
  /// Number of ranks that ended like the cause.
  [[nodiscard]] int like_cause() const;
  /// The first that is not a survivor, else the first; there must be one.
  [[nodiscard]] const Death& cause() const;

 private:
  std::vector<Death> all_;
};

}  // namespace sherd::launch
