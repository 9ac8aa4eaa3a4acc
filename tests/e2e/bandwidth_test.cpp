// `sherd bandwidth` on the ranks of one host; between hosts: hosts_test.cpp.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

TEST(Bandwidth, MeasuresEachCollectiveAndEachPair) {
  const Ended ended = expect_code(0, {"bandwidth", "-n", "3", "--max-mib", "1", "--json"});
  const auto result = nlohmann::json::parse(ended.out);
  EXPECT_EQ(result.at("ranks"), 3);
  EXPECT_EQ(result.at("hosts"), 1);
  EXPECT_EQ(result.at("transport"), "shared memory");
  EXPECT_EQ(result.at("collectives").size(), 3U * 5U);  // 4 KiB, 16, 64, 256, 1 MiB
  for (const auto& one : result.at("collectives")) {
    const double passes = one.at("operation") == "all-reduce" ? 2 : 1;
    const double bytes = one.at("bytes").get<double>();
    EXPECT_NEAR(one.at("bus_gb_per_second").get<double>(),
                bytes / one.at("seconds").get<double>() * passes * 2 / 3 / 1e9,
                1e-6 * one.at("bus_gb_per_second").get<double>());
  }
  std::vector<std::vector<int>> pairs;
  for (const auto& pair : result.at("pairs")) {
    pairs.push_back(pair.at("ranks"));
    EXPECT_EQ(pair.at("transport"), "shared memory");
    EXPECT_EQ(pair.at("sizes").size(), 3U);  // 4 KiB, 64 KiB, 1 MiB
    EXPECT_EQ(pair.at("sizes").at(2).at("bytes"), 1 << 20);
    EXPECT_EQ(pair.at("sizes").at(2).at("gb_per_second"), pair.at("gb_per_second"));
    EXPECT_EQ(pair.at("sizes").at(0).at("seconds"), pair.at("latency_seconds"));
    EXPECT_GT(pair.at("gb_per_second"), 0);
  }
  EXPECT_EQ(pairs, (std::vector<std::vector<int>>{{0, 1}, {0, 2}, {1, 2}}));
  EXPECT_THAT(ended.err, HasSubstr("measuring collectives of "));
}

TEST(Bandwidth, IsATableForPeople) {
  const Ended ended = expect_code(0, {"bandwidth", "-n", "2", "--max-mib", "1"});
  for (const char* const text :
       {"2 ranks on 1 host, over shared memory", "all-gather", "  64 KiB ", "   1 MiB ",
        "slowest pair over shared memory: ranks 0 and 1: 4 KiB in ", " ms, 64 KiB at "}) {
    EXPECT_THAT(ended.out, HasSubstr(text));
  }
}

TEST(Bandwidth, SaysWhetherItIsEnough) {
  const auto asked = [](const std::string& rate) {
    return Arguments{"bandwidth", "-n", "2", "--max-mib", "1", "--at-least", rate};
  };
  EXPECT_THAT(expect_code(0, asked("1e-6")).out, HasSubstr(" GB/s, at least the 1e-06 asked for"));
  // All ranks end with the answer, and the first has said it: that is no failure of a rank.
  const Ended below = expect_code(1, asked("1e6"));
  EXPECT_THAT(below.out, HasSubstr(" GB/s, below the 1e+06 asked for"));
  EXPECT_THAT(below.err, testing::Not(HasSubstr("exited with code")));
}

// Numbers of ranks of a host that no rank has as 0, as where they are set by hand.
TEST(Bandwidth, KnowsHostsWithoutALauncher) {
  const std::string port = std::to_string(launch::listen_on_loopback({}).port);
  const auto variables = [&](const std::string& rank) {
    return Arguments{"RANK=" + rank,       "WORLD_SIZE=2",          "LOCAL_RANK=1",
                     "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port};
  };
  const Arguments words = {"bandwidth", "--max-mib", "1", "--json"};
  Program second(words, variables("1"));
  Program first(words, variables("0"));
  const Ended ended = first.finish();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(nlohmann::json::parse(ended.out).at("hosts"), 1);
  EXPECT_EQ(second.finish().code, 0);
}

TEST(Bandwidth, RefusesWhatMemoryDoesNotHold) {
  EXPECT_THAT(expect_code(81, {"bandwidth", "-n", "2", "--max-mib", "65536"}).err,
              HasSubstr("tensors of 65536 MiB take "));
}

TEST(Bandwidth, RefusesWhatCannotBe) {
  const auto refused = [](const Arguments& flags, const std::string& why) {
    EXPECT_THAT(expect_code(64, Arguments{"bandwidth"} + flags).err, HasSubstr(why));
  };
  refused({}, "one rank alone exchanges nothing: start several, as in sherd bandwidth -n 2");
  refused({"-n", "0"}, "--ranks: Value 0 not in range");
  refused({"-n", "2", "--max-mib", "0"}, "--max-mib");
  refused({"-n", "2", "--at-least", "-1"}, "--at-least");
}

}  // namespace
}  // namespace sherd::test
