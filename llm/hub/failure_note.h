#pragma once
// A note in the file of a lock about a failed attempt of the process that held it, so that waiting
// processes need not fail in turn.

#include <string>

#include "sherd/error.h"

namespace llm::hub {

/// An attempt of another process failed after this one began.
class FailedElsewhere : public sherd::Error {
 public:
  FailedElsewhere(sherd::ExitCode code, const std::string& message, std::string run)
      : Error(code, message), run_(std::move(run)) {}
  /// The run of the other process; empty: none.
  [[nodiscard]] const std::string& run() const { return run_; }

 private:
  std::string run_;
};

/// Throws FailedElsewhere if the file has a note about `attempt` that a process of this host wrote
/// after this process began.
void take_over_failure(int lock_fd, const std::string& attempt);

/// Writes a note. Ignores write errors: others then try for themselves.
void note_failure(int lock_fd, const std::string& attempt, const std::string& run,
                  const sherd::Error& failure);

}  // namespace llm::hub
