#include "rendezvous/round.h"

#include <cstdint>

#include "launch/random_hex.h"

namespace sherd::detail {

namespace {

constexpr std::size_t kWordBytes = 16;

std::string key(const char* what, int rank) {
  return std::string("round/") + what + "/" + std::to_string(rank);
}

void set(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

// Empty where nobody has said anything.
std::string get(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) {
    return "";
  }
  const std::vector<std::uint8_t> text = store.get(key);
  return {text.begin(), text.end()};
}

}  // namespace

Round::Round(c10d::Store& store, int rank, int world_size)
    : store_(store),
      rank_(rank),
      word_(launch::random_hex(kWordBytes)),
      answered_(static_cast<std::size_t>(world_size)) {
  if (rank == 0) {
    name_ = word_;
  } else {
    set(store_, key("asks", rank), word_);
  }
}

const std::string& Round::look() {
  if (rank_ == 0) {
    for (int rank = 1; rank < static_cast<int>(answered_.size()); ++rank) {
      answer(rank);
    }
  } else {
    hear();
  }
  return name_;
}

void Round::answer(int rank) {
  std::string& last = answered_[static_cast<std::size_t>(rank)];
  const std::string word = get(store_, key("asks", rank));
  if (word != last) {
    set(store_, key("answer", rank), word + name_);
    last = word;
  }
}

void Round::hear() {
  const std::string answer = get(store_, key("answer", rank_));
  if (answer.starts_with(word_)) {
    name_ = answer.substr(word_.size());
  }
}

}  // namespace sherd::detail
