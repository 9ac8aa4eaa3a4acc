#include "llm/bench/pair_rounds.h"

#include <algorithm>
#include <cstddef>

namespace llm::bench {

namespace {

// Each with each other, in the order of a round-robin tournament: the first turns, and who stands
// opposite plays.
std::vector<RankPair> tournament(const std::vector<int>& players) {
  const int count = static_cast<int>(players.size());
  const int even = count + count % 2;
  std::vector<RankPair> pairs;
  for (int turn = 0; turn < even - 1; ++turn) {
    const auto seat = [&](int place) {
      return place == 0 ? 0 : (place - 1 + turn) % (even - 1) + 1;
    };
    for (int i = 0; i < even / 2; ++i) {
      const auto [first, second] = std::minmax({seat(i), seat(even - 1 - i)});
      if (second < count) {
        pairs.push_back(
            {players[static_cast<std::size_t>(first)], players[static_cast<std::size_t>(second)]});
      }
    }
  }
  return pairs;
}

/// Who has something to do in a round.
class PairRound {
 public:
  PairRound(std::size_t ranks, std::size_t hosts) : is_busy_(ranks), of_host_(hosts) {}

  bool takes(const RankPair& pair, const std::vector<int>& hosts) {
    const auto rank = [](int number) { return static_cast<std::size_t>(number); };
    Work& one = of_host_[rank(hosts[rank(pair.first)])];
    Work& other = of_host_[rank(hosts[rank(pair.second)])];
    const bool within = &one == &other;
    const bool fits =
        within ? one != Work::Outside && !is_busy_[rank(pair.first)] && !is_busy_[rank(pair.second)]
               : one == Work::None && other == Work::None;
    if (fits) {
      is_busy_[rank(pair.first)] = is_busy_[rank(pair.second)] = true;
      one = other = within ? Work::Within : Work::Outside;
      pairs_.push_back(pair);
    }
    return fits;
  }
  [[nodiscard]] const std::vector<RankPair>& pairs() const { return pairs_; }

 private:
  enum class Work { None, Within, Outside };
  std::vector<bool> is_busy_;
  std::vector<Work> of_host_;
  std::vector<RankPair> pairs_;
};

std::vector<RankPair> pairs_of(const std::vector<int>& hosts, int host_count) {
  std::vector<std::vector<int>> ranks_of(static_cast<std::size_t>(host_count));
  std::vector<int> all;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    ranks_of[static_cast<std::size_t>(hosts[static_cast<std::size_t>(rank)])].push_back(rank);
    all.push_back(rank);
  }
  if (static_cast<int>(all.size()) <= kMostRanksOfEachPair) {
    return tournament(all);
  }
  std::vector<RankPair> pairs;
  std::vector<int> firsts;
  for (std::vector<int>& ranks : ranks_of) {
    ranks.resize(std::min<std::size_t>(ranks.size(), kMostRanksOfAHost));
    const std::vector<RankPair> within = tournament(ranks);
    pairs.insert(pairs.end(), within.begin(), within.end());
    firsts.push_back(ranks.front());
  }
  const std::vector<RankPair> between = tournament(firsts);
  pairs.insert(pairs.end(), between.begin(), between.end());
  return pairs;
}

}  // namespace

std::vector<std::vector<RankPair>> pair_rounds(const std::vector<int>& hosts) {
  const int host_count = *std::max_element(hosts.begin(), hosts.end()) + 1;
  std::vector<PairRound> rounds;
  for (const RankPair& pair : pairs_of(hosts, host_count)) {
    if (std::none_of(rounds.begin(), rounds.end(),
                     [&](PairRound& round) { return round.takes(pair, hosts); })) {
      rounds.emplace_back(hosts.size(), static_cast<std::size_t>(host_count));
      rounds.back().takes(pair, hosts);
    }
  }
  std::vector<std::vector<RankPair>> found;
  for (const PairRound& round : rounds) {
    found.push_back(round.pairs());
  }
  return found;
}

}  // namespace llm::bench
