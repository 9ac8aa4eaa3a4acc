#pragma once
// Which ranks exchange with each other at the same time.

#include <vector>

namespace llm::bench {

struct RankPair {
  int first = 0;
  int second = 0;
  bool operator==(const RankPair&) const = default;
};

/// Up to so many ranks every pair is measured.
inline constexpr int kMostRanksOfEachPair = 8;
/// Of more, the first so many of each host with each other, and the first ranks of each two hosts.
inline constexpr int kMostRanksOfAHost = 32;

/// Pairs in rounds, in each of which a rank is in one pair at most, and a host that exchanges with
/// another does nothing else, so that the link between two hosts is theirs alone. Ranks of one host
/// exchange side by side, and share its memory's bandwidth as in training. `hosts` gives by rank
/// the number of its host, from 0.
[[nodiscard]] std::vector<std::vector<RankPair>> pair_rounds(const std::vector<int>& hosts);

}  // namespace llm::bench
