#include "comm/exchange.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <thread>

#include "storage/own_work.h"

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;

// Time for a rank to write its note after its closed connections have shown that it failed.
constexpr std::chrono::milliseconds kToWriteANote{200};
constexpr std::chrono::milliseconds kBetweenReads{20};
// A rank that is gone will never know.
constexpr std::chrono::seconds kUntilAllKnow{5};
constexpr const char* kStoreIsLost =
    " The store, which rank 0 holds, does not answer: rank 0 is gone, stopped, or cut off.";

std::string key_of(int rank) {
  return "failed/" + std::to_string(rank);
}

// How it failed, in one letter, and at what; on another line the cause, if it is known.
std::string note_of(const std::string& what, Failure failure, const std::string& cause = "") {
  return (failure == Failure::TimedOut ? 'T' : 'L') + what + (cause.empty() ? "" : "\n" + cause);
}

sigset_t only_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

// How an exchange failed, by the words of the back end. A connection that timed out is lost.
Failure failure_of(const std::string& why) {
  const auto says = [&](const char* words) { return why.find(words) != std::string::npos; };
  const bool timed_out = says("imed out") || says("timeout");
  return timed_out && !says("Connection timed out") ? Failure::TimedOut : Failure::Lost;
}

std::vector<int> without_note(const FailureNotes& of) {
  std::vector<int> missing;
  for (int i = 0; i < of.group.size; ++i) {
    if (!of.store->check({key_of(of.group.rank_at(i))})) {
      missing.push_back(of.group.rank_at(i));
    }
  }
  return missing;
}

// Returns the ranks without a note. If a connection broke and all others have written one, the rank
// without is gone.
std::vector<int> wait_for_notes(const FailureNotes& of, Failure failure) {
  const auto begin = Clock::now();
  const auto enough = std::min<std::chrono::milliseconds>(of.for_others, kToWriteANote);
  for (;;) {
    std::vector<int> missing = without_note(of);
    const auto waited = Clock::now() - begin;
    const bool is_known = failure == Failure::Lost && missing.size() == 1 && waited >= enough;
    if (missing.empty() || is_known || waited >= of.for_others) {
      return missing;
    }
    std::this_thread::sleep_for(kBetweenReads);
  }
}

}  // namespace

std::string nccl_reason(const std::string& thrown) {
  if (thrown.find("NCCL error") == std::string::npos &&
      thrown.find("NCCL communicator") == std::string::npos) {
    return {};
  }
  // c10d writes where, the kind of error, what that means in general, and this line at last.
  constexpr const char* kLast = "Last error:";
  const size_t last = thrown.rfind(kLast);
  std::istringstream lines(
      last == std::string::npos ? thrown : thrown.substr(last + std::string(kLast).size()));
  std::string reason;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      reason += (reason.empty() ? "" : "; ") + line;
    }
  }
  while (!reason.empty() && (reason.back() == '.' || reason.back() == ' ')) {
    reason.pop_back();
  }
  return reason.empty() ? "an error of which it says nothing" : reason;
}

std::string nccl_interfaces() {
  const char* const named = std::getenv("NCCL_SOCKET_IFNAME");
  return named == nullptr
             ? "NCCL_SOCKET_IFNAME is not set, so NCCL chose the network interface itself."
             : std::string("NCCL was told to use the network interface NCCL_SOCKET_IFNAME=") +
                   named + ".";
}

WithoutSigpipe::WithoutSigpipe() : was_pending_(is_pending()) {
  const sigset_t sigpipe = only_sigpipe();
  pthread_sigmask(SIG_BLOCK, &sigpipe, &before_);
}

// Takes a signal that came meanwhile: it would be delivered when it is unblocked.
WithoutSigpipe::~WithoutSigpipe() {
  const sigset_t sigpipe = only_sigpipe();
  const timespec at_once{};
  while (!was_pending_ && is_pending() && sigtimedwait(&sigpipe, nullptr, &at_once) == SIGPIPE) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void FailureNotes::note(const std::string& what) const {
  try {
    store->set(key_of(rank), note_of(what, Failure::Lost));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the rank that holds it is gone
  }
}

std::string FailureNotes::Report::text() const {
  return (missing.empty() ? "" : " Missing rank " + missing + ".") + store + last_work + elsewhere +
         causes;
}

FailureNotes::Report FailureNotes::report(const std::string& what, Failure failure,
                                          const std::string& cause) const {
  const Report without_store{.store = kStoreIsLost, .failure = failure};
  if (progress != nullptr && progress->is_lost()) {
    return without_store;
  }
  limit_store(for_others);
  Report report{.failure = failure};
  try {
    store->set(key_of(rank), note_of(what, failure, cause));
    const std::vector<int> missing = wait_for_notes(*this, failure);
    for (int i = 0; i < group.size; ++i) {
      const int other = group.rank_at(i);
      if (std::find(missing.begin(), missing.end(), other) != missing.end()) {
        report.missing += (report.missing.empty() ? "" : ", ") + std::to_string(other);
        continue;
      }
      const std::vector<uint8_t> note = store->get(key_of(other));
      const auto line = std::find(note.begin(), note.end(), '\n');
      const std::string place(note.begin() + 1, line);
      if (line != note.end() && other != rank) {
        report.causes += " Rank " + std::to_string(other) +
                         " reported: " + std::string(line + 1, note.end()) + ".";
      }
      if (note.front() == 'T') {
        report.failure = Failure::TimedOut;
      }
      if (place != what) {
        report.elsewhere += " Rank " + std::to_string(other) + " waited in " + place + ".";
      }
    }
    if (progress != nullptr) {
      report.last_work = last_work_of(progress->reports(), missing);
    }
  } catch (const std::exception&) {
    return without_store;
  }
  return report;
}

void wait_until_all_know(c10d::Store& store, const std::string& counter, int rank, int size) {
  const auto deadline = Clock::now() + kUntilAllKnow;
  try {
    store.add(counter, 1);
    while (rank == 0 && store.add(counter, 0) < size && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): rank 0 did not wait longer
  }
}

Error failed_exchange(const FailureNotes& notes, const std::string& what,
                      const std::exception& error) {
  const std::string why = message_of(error);
  const auto* const own = dynamic_cast<const Error*>(&error);
  const bool timed_out = own != nullptr && own->code() == ExitCode::Hang;
  const std::string nccl = nccl_reason(why);
  const FailureNotes::Report report =
      notes.report(what, timed_out ? Failure::TimedOut : failure_of(why), nccl);
  const bool hangs = report.failure == Failure::TimedOut;
  const ExitCode code = hangs ? ExitCode::Hang : ExitCode::PeerLost;
  if (!nccl.empty()) {
    return {code, what + " failed on rank " + std::to_string(notes.rank) + ". NCCL says: " + nccl +
                      "." + report.text() +
                      " Another rank has ended or hangs, and its own message says why, or the "
                      "network between them fails. " +
                      nccl_interfaces() + " " + kNcclTellsMore};
  }
  return {code, what + " failed: " + why + "." + report.text() +
                    (hangs ? " A rank is alive but did not arrive in time: it hangs, is stopped, "
                             "or is out of step. If it is only slow, raise the timeout."
                           : " Another rank has ended, is unreachable, or is out of step; its own "
                             "message says why.")};
}

}  // namespace sherd::detail
