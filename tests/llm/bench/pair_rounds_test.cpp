#include "llm/bench/pair_rounds.h"

#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace llm::bench {
namespace {

using Hosts = std::vector<int>;

// All pairs; each round is checked against what it promises.
std::set<std::pair<int, int>> pairs_in(const Hosts& hosts) {
  std::set<std::pair<int, int>> all;
  for (const auto& round : pair_rounds(hosts)) {
    std::map<int, int> pairs_of_rank;
    std::map<int, int> pairs_of_host;
    std::set<int> hosts_that_link;
    for (const auto& [first, second] : round) {
      EXPECT_LT(first, second);
      EXPECT_TRUE(all.emplace(first, second).second) << first << " and " << second << " twice";
      EXPECT_EQ(++pairs_of_rank[first], 1);
      EXPECT_EQ(++pairs_of_rank[second], 1);
      const int one = hosts[static_cast<std::size_t>(first)];
      const int other = hosts[static_cast<std::size_t>(second)];
      ++pairs_of_host[one];
      if (one != other) {
        ++pairs_of_host[other];
        hosts_that_link.insert({one, other});
      }
    }
    for (const int host : hosts_that_link) {
      EXPECT_EQ(pairs_of_host[host], 1);
    }
  }
  return all;
}

TEST(PairRounds, AreATournamentOnOneHost) {
  EXPECT_EQ(pair_rounds({0, 0}), (std::vector<std::vector<RankPair>>{{{0, 1}}}));
  for (const int ranks : {3, 4, 8, 12}) {
    const Hosts hosts(static_cast<std::size_t>(ranks), 0);
    EXPECT_EQ(pairs_in(hosts).size(), static_cast<std::size_t>(ranks * (ranks - 1) / 2));
    EXPECT_EQ(pair_rounds(hosts).size(), static_cast<std::size_t>(ranks - 1 + ranks % 2));
  }
}

TEST(PairRounds, OfFewRanksAreAllPairsAndLinksAreNotShared) {
  EXPECT_EQ(pairs_in({0, 0, 1, 1}).size(), 6U);
  EXPECT_EQ(pairs_in({0, 1, 0, 1}).size(), 6U);  // dealt in turns
  EXPECT_EQ(pairs_in({0, 1, 2, 2, 1, 0}).size(), 15U);
}

TEST(PairRounds, OfManyRanksAreThoseOfAHostAndOfTheFirst) {
  Hosts hosts;
  for (int rank = 0; rank < 16; ++rank) {
    hosts.push_back(rank / 4);
  }
  const auto pairs = pairs_in(hosts);
  EXPECT_EQ(pairs.size(), 4U * 6U + 6U);
  EXPECT_TRUE(pairs.contains({0, 12}));
  EXPECT_FALSE(pairs.contains({1, 12}));
  EXPECT_EQ(pairs_in(Hosts(100, 0)).size(), 32U * 31U / 2U);
}

}  // namespace
}  // namespace llm::bench
