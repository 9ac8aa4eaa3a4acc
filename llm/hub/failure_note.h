#pragma once
// What the process that holds a lock tells those that wait for it of an attempt that failed, so
// that they need not fail in turn. It stands in the lock's file.

#include <string>

#include "sherd/error.h"

namespace llm::hub {

/// An attempt of another process failed after this one began.
class FailedElsewhere : public sherd::Error {
 public:
  FailedElsewhere(sherd::ExitCode code, const std::string& message, std::string run)
      : Error(code, message), run_(std::move(run)) {}
  /// The run that the other process was of; empty: none.
  [[nodiscard]] const std::string& run() const { return run_; }

 private:
  std::string run_;
};

/// Throws FailedElsewhere if the file has a note on `attempt` that a process of this host wrote
/// since this process began.
void take_over_failure(int lock_fd, const std::string& attempt);

/// Leaves a note. What cannot be written is left out: others then try for themselves.
void note_failure(int lock_fd, const std::string& attempt, const std::string& run,
                  const sherd::Error& failure);

}  // namespace llm::hub
