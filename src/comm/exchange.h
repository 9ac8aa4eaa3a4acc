#pragma once
// What process groups throw, as an error with a name.

#include <chrono>
#include <exception>
#include <string>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/nccl_errors.h"
#include "comm/roster.h"
#include "comm/without_sigpipe.h"
#include "sherd/error.h"

namespace sherd::detail {

/// How an exchange failed, by what the back end says of it. A connection that the network timed out
/// is lost; an operation that timed out has waited for somebody.
inline Failure failure_of(const std::string& why) {
  const auto says = [&](const char* words) { return why.find(words) != std::string::npos; };
  const bool timed_out = says("imed out") || says("timeout");
  return timed_out && !says("Connection timed out") ? Failure::TimedOut : Failure::Lost;
}

/// How long a wait for Gloo lasts before it looks at the progress of the ranks.
inline constexpr std::chrono::milliseconds kBetweenLooksAtProgress{100};

/// Waits for a collective of Gloo until it ends, or no rank has made progress for the timeout.
/// Throws what the collective threw, or Error(Hang).
inline void wait_patiently(const Roster& roster, c10d::Work& work) {
  Patience patience = roster.patience();
  for (;;) {
    try {
      work.wait(kBetweenLooksAtProgress);
      return;
    } catch (const std::exception&) {
      if (work.isCompleted()) {
        work.wait();  // it ended meanwhile, or this was its own failure
        return;
      }
      if (patience.is_over()) {
        throw Error(ExitCode::Hang, "no rank has made progress for the timeout");
      }
    }
  }
}

/// A failed exchange means that another rank is gone (PeerLost), or there and silent until the
/// timeout (Hang); what it was for is added by the caller. While it lasts, the rank's board says
/// that it waits.
template <class Fn>
auto exchange(const Roster& roster, const std::string& what, Fn&& fn) {
  const auto failed = [&](const std::string& why, Failure failure) {
    const std::string nccl = nccl_reason(why);
    const Roster::Report report = roster.report(what, failure, nccl);
    const bool hangs = report.failure == Failure::TimedOut;
    if (!nccl.empty()) {
      return Error(hangs ? ExitCode::Hang : ExitCode::PeerLost,
                   what + " failed on rank " + std::to_string(roster.rank()) +
                       ". NCCL says: " + nccl + "." + report.text +
                       " Another rank has ended or hangs, and its own message says why, or the "
                       "network between them fails. " +
                       nccl_interfaces() + " " + kNcclTellsMore);
    }
    return Error(hangs ? ExitCode::Hang : ExitCode::PeerLost,
                 what + " failed: " + why + "." + report.text +
                     (hangs ? " A rank is alive but did not arrive in time: it hangs, is stopped, "
                              "or is out of step. If it is only slow, raise the timeout."
                            : " Another rank has ended, is unreachable, or is out of step; its own "
                              "message says why."));
  };
  const WithoutSigpipe errors_not_signals;
  const WaitBoard::Entry waiting(roster.board(), what);
  try {
    return fn();
  } catch (const Error& error) {
    const std::string why = error.what();
    throw failed(why, error.code() == ExitCode::Hang ? Failure::TimedOut : failure_of(why));
  } catch (const c10::Error& error) {
    const std::string why = error.what_without_backtrace();
    throw failed(why, failure_of(why));
  } catch (const std::exception& error) {  // Gloo's own exceptions, whose headers the wheel lacks
    throw failed(error.what(), failure_of(error.what()));
  }
}

}  // namespace sherd::detail
