#include "launch/exit_status.h"

#include <sys/wait.h>

#include "launch/signals.h"
#include "sherd/error.h"

namespace sherd::launch {
namespace {

/// docs/guide/exit-codes.md in a few words.
std::string meaning(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::Done:
      return "done";
    case ExitCode::Usage:
      return "a flag or the configuration is wrong";
    case ExitCode::BadData:
      return "a data or model file is wrong";
    case ExitCode::InputMissing:
      return "an input is missing";
    case ExitCode::Unavailable:
      return "a port or address is not available";
    case ExitCode::Internal:
      return "a bug of Sherd";
    case ExitCode::CannotWrite:
      return "an output cannot be written";
    case ExitCode::StorageIo:
      return "storage failed";
    case ExitCode::Stopped:
      return "stopped on request";
    case ExitCode::PeerLost:
      return "a peer was lost";
    case ExitCode::NotAuthorised:
      return "not authorised";
    case ExitCode::RanksDisagree:
      return "ranks disagree";
    case ExitCode::NonFinite:
      return "the loss is not finite";
    case ExitCode::Hang:
      return "a hang";
    case ExitCode::OutOfMemory:
      return "out of memory";
  }
  return "";
}

}  // namespace

ExitStatus ExitStatus::from_wait(int status) {
  if (WIFSIGNALED(status)) {
    return {0, WTERMSIG(status)};
  }
  return {WEXITSTATUS(status), 0};
}

std::string ExitStatus::text() const {
  if (signal != 0) {
    return "was killed by signal " + std::to_string(signal) + " (" + signal_name(signal) + ")";
  }
  const std::string why = meaning(code);
  return "exited with code " + std::to_string(code) + (why.empty() ? "" : " (" + why + ")");
}

}  // namespace sherd::launch
