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

std::string Roster::report(const std::string& what) const {
  std::string missing;
  std::string elsewhere;
  try {
    store_->set(key_of(rank_), bytes_of(what));
    const auto deadline = std::chrono::steady_clock::now() + patience_;
    for (int i = 0; i < group_.size; ++i) {
      const int other = group_.rank_at(i);
      while (!store_->check({key_of(other)}) && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      if (!store_->check({key_of(other)})) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(other);
        continue;
      }
      const std::vector<uint8_t> note = store_->get(key_of(other));
      const std::string place(note.begin(), note.end());
      if (place != what) {
        elsewhere += " Rank " + std::to_string(other) + " waited in " + place + ".";
      }
    }
  } catch (const std::exception&) {
    return "";  // the rank that holds the store is gone
  }
  return (missing.empty() ? "" : " Missing rank " + missing + ".") + elsewhere;
}

}  // namespace sherd::detail
