#include "comm/roster.h"

#include <algorithm>
#include <exception>
#include <thread>

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;

// What a rank needs to write its note after its closed connections have shown that it failed.
constexpr std::chrono::milliseconds kToWriteANote{200};
constexpr std::chrono::milliseconds kBetweenReads{20};
constexpr const char* kStoreIsLost =
    " The store, which rank 0 holds, does not answer: rank 0 is gone, stopped, or cut off.";

std::string key_of(int rank) {
  return "failed/" + std::to_string(rank);
}

// How it failed, in one letter, and at what; on another line by what cause, if that is known.
std::vector<uint8_t> note_of(const std::string& what, Failure failure,
                             const std::string& cause = "") {
  const std::string text =
      (failure == Failure::TimedOut ? 'T' : 'L') + what + (cause.empty() ? "" : "\n" + cause);
  return {text.begin(), text.end()};
}

}  // namespace

void Roster::note(const std::string& what) const {
  try {
    store_->set(key_of(rank_), note_of(what, Failure::Lost));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the rank that holds it is gone
  }
}

std::vector<int> Roster::without_note() const {
  std::vector<int> missing;
  for (int i = 0; i < group_.size; ++i) {
    if (!store_->check({key_of(group_.rank_at(i))})) {
      missing.push_back(group_.rank_at(i));
    }
  }
  return missing;
}

// Ranks that still compute reach an exchange that fails; one that is gone never does. Where a
// connection broke and all others have written a note, the one without is the one that is gone.
void Roster::wait_for_notes(Failure failure) const {
  const auto begin = Clock::now();
  const auto enough = std::min<std::chrono::milliseconds>(patience_, kToWriteANote);
  for (;;) {
    const size_t missing = without_note().size();
    const auto waited = Clock::now() - begin;
    const bool is_known = failure == Failure::Lost && missing == 1 && waited >= enough;
    if (missing == 0 || is_known || waited >= patience_) {
      return;
    }
    std::this_thread::sleep_for(kBetweenReads);
  }
}

Roster::Notes Roster::read_notes(const std::string& what, Failure failure,
                                 const std::string& cause) const {
  Notes notes;
  if (store_is_lost()) {
    notes.store = kStoreIsLost;
    return notes;
  }
  boards_.limit_store(patience_);
  try {
    store_->set(key_of(rank_), note_of(what, failure, cause));
    wait_for_notes(failure);
    const std::vector<int> missing = without_note();
    for (int i = 0; i < group_.size; ++i) {
      const int other = group_.rank_at(i);
      if (std::find(missing.begin(), missing.end(), other) != missing.end()) {
        notes.missing += (notes.missing.empty() ? "" : ", ") + std::to_string(other);
        continue;
      }
      const std::vector<uint8_t> note = store_->get(key_of(other));
      const auto line = std::find(note.begin(), note.end(), '\n');
      const std::string place(note.begin() + 1, line);
      if (line != note.end() && other != rank_) {
        notes.causes += " Rank " + std::to_string(other) +
                        " reported: " + std::string(line + 1, note.end()) + ".";
      }
      notes.others_timed_out = notes.others_timed_out || note.front() == 'T';
      if (place != what) {
        notes.elsewhere += " Rank " + std::to_string(other) + " waited in " + place + ".";
      }
    }
    if (boards_.progress != nullptr) {
      notes.last_work = last_work_of(boards_.progress->reports(), missing);
    }
  } catch (const std::exception&) {
    Notes none;
    none.store = kStoreIsLost;
    return none;
  }
  return notes;
}

Roster::Report Roster::report(const std::string& what, Failure failure,
                              const std::string& cause) const {
  const Notes notes = read_notes(what, failure, cause);
  return {(notes.missing.empty() ? "" : " Missing rank " + notes.missing + ".") + notes.store +
              notes.last_work + notes.elsewhere + notes.causes,
          notes.others_timed_out ? Failure::TimedOut : failure};
}

std::string Roster::elsewhere(const std::string& what) const {
  const Notes notes = read_notes(what, Failure::TimedOut);
  return notes.store + notes.elsewhere;
}

}  // namespace sherd::detail
