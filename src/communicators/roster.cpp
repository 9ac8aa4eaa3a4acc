#include "communicators/roster.h"

#include <exception>
#include <thread>
#include <vector>

namespace sherd::detail {

namespace {

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

}  // namespace

std::string Roster::key_of(int rank) const {
  return "failed/" + std::to_string(rank);
}

void Roster::note(const std::string& what) const {
  try {
    store_->set(key_of(rank_), bytes_of(what));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the rank that holds it is gone
  }
}

Roster::Notes Roster::read_notes(const std::string& what) const {
  Notes notes;
  try {
    store_->set(key_of(rank_), bytes_of(what));
    const auto deadline = std::chrono::steady_clock::now() + patience_;
    for (int i = 0; i < group_.size; ++i) {
      const int other = group_.rank_at(i);
      while (!store_->check({key_of(other)}) && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      if (!store_->check({key_of(other)})) {
        notes.missing += (notes.missing.empty() ? "" : ", ") + std::to_string(other);
        continue;
      }
      const std::vector<uint8_t> note = store_->get(key_of(other));
      const std::string place(note.begin(), note.end());
      if (place != what) {
        notes.elsewhere += " Rank " + std::to_string(other) + " waited in " + place + ".";
      }
    }
  } catch (const std::exception&) {
    return {};  // the rank that holds the store is gone
  }
  return notes;
}

std::string Roster::report(const std::string& what) const {
  const Notes notes = read_notes(what);
  return (notes.missing.empty() ? "" : " Missing rank " + notes.missing + ".") + notes.elsewhere;
}

std::string Roster::elsewhere(const std::string& what) const {
  return read_notes(what).elsewhere;
}

}  // namespace sherd::detail
