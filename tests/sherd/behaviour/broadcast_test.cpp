// World::broadcast and World::send: the root's bytes reach every rank, the sender's one rank alone,
// over threads and processes, and a rank that is missing is named.

#include <numeric>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/expect_error.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::test {
namespace {

// Throws unless each root's bytes arrive, whatever their number.
void check_broadcasts(World world) {
  for (const int64_t bytes : {0, 1, 63, 4096, (1 << 20) + 7}) {
    for (int root = 0; root < world.size(); ++root) {
      const auto pattern_of = [&](int rank) {
        std::vector<char> pattern(static_cast<size_t>(bytes));
        std::iota(pattern.begin(), pattern.end(), static_cast<char>(7 * rank + 1));
        return pattern;
      };
      std::vector<char> data = pattern_of(world.rank());
      world.broadcast(data.data(), bytes, root);
      if (data != pattern_of(root)) {
        throw std::runtime_error("other bytes than those of rank " + std::to_string(root));
      }
    }
  }
}

TEST(Broadcast, ReachesEveryThread) {
  for (const int ranks : {1, 2, 3, 4}) {
    EXPECT_NO_THROW(run_ranks(ranks, check_broadcasts)) << ranks << " ranks";
  }
}

TEST(Broadcast, ReachesEveryProcess) {
  EXPECT_EQ(run_processes(3, check_broadcasts), (std::vector<int>{0, 0, 0}));
}

// Throws unless the sender's bytes arrive at the receiver and nowhere else.
void check_sends(World world) {
  for (const int64_t bytes : {0, 1, (1 << 20) + 7}) {
    for (int pair = 0; pair < world.size() * world.size(); ++pair) {
      const int from = pair / world.size();
      const int to = pair % world.size();
      std::vector<char> data(static_cast<size_t>(bytes), static_cast<char>(world.rank()));
      world.send(data.data(), bytes, from, to);
      const int expected = world.rank() == to ? from : world.rank();
      if (data != std::vector<char>(data.size(), static_cast<char>(expected))) {
        throw std::runtime_error("rank " + std::to_string(from) + " to " + std::to_string(to));
      }
    }
  }
}

TEST(Send, ReachesOneThreadAlone) {
  for (const int ranks : {1, 2, 3}) {
    EXPECT_NO_THROW(run_ranks(ranks, check_sends)) << ranks << " ranks";
  }
}

TEST(Send, ReachesOneProcessAlone) {
  EXPECT_EQ(run_processes(3, check_sends), (std::vector<int>{0, 0, 0}));
}

TEST(Send, ReachesOneRankOfAPartAlone) {
  EXPECT_NO_THROW(run_ranks(3, [](World world) { check_sends(world.subset({0, 1, 3})); }));
}

TEST(Send, RefusesNumbersThatAreNoRanks) {
  run_ranks(2, [](World world) {
    char byte = 0;
    expect_error([&] { world.send(&byte, 1, 0, 2); }, ExitCode::Usage,
                 {"[send] sender and receiver are among 2 ranks and exchange 0 bytes or more; got "
                  "ranks 0 and 2 and 1 bytes."});
    expect_error([&] { world.send(&byte, 1, -1, 0); }, ExitCode::Usage, {"got ranks -1 and 0"});
    expect_error([&] { world.send(&byte, -3, 0, 1); }, ExitCode::Usage, {"and -3 bytes."});
  });
}

TEST(Send, WithoutAProcessEndsInAnErrorThatNamesIt) {
  const auto statuses = run_processes(3, [](World world) {
    world.barrier();
    if (world.rank() == 2) {
      _exit(9);
    }
    char byte = 0;
    if (world.rank() == 0) {
      expect_error([&] { world.send(&byte, 1, 2, 0); }, ExitCode::PeerLost,
                   {"send from rank 2 to rank 0 failed: "});
    }
    if (testing::Test::HasFailure()) {
      throw std::runtime_error("another message");
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 9}));
}

TEST(Broadcast, RefusesARootThatIsNoRank) {
  run_ranks(2, [](World world) {
    char byte = 0;
    for (const int root : {-1, 2}) {
      expect_error([&] { world.broadcast(&byte, 1, root); }, ExitCode::Usage,
                   {"[broadcast] the root is one of 2 ranks and sends 0 bytes or more; got root " +
                    std::to_string(root) + " and 1 bytes."});
    }
    expect_error([&] { world.broadcast(&byte, -3, 0); }, ExitCode::Usage,
                 {"got root 0 and -3 bytes."});
  });
}

TEST(Broadcast, NamesTheThreadThatExpectsOtherBytes) {
  run_ranks(3, [](World world) {
    std::vector<char> data(8);
    const auto broadcast = [&] { world.broadcast(data.data(), world.rank() == 2 ? 4 : 8, 1); };
    if (world.rank() == 2) {
      expect_error(broadcast, ExitCode::RanksDisagree,
                   {"[broadcast] rank 1 sends 8 bytes, and rank 2 expects 4."});
    } else {
      broadcast();
    }
    check_broadcasts(world);  // and the world is still usable
  });
}

TEST(Broadcast, NamesTheThreadThatIsMissing) {
  run_ranks(3, [](World world) {
    if (world.rank() != 2) {
      char byte = 0;
      expect_error([&] { world.broadcast(&byte, 1, 0); }, ExitCode::PeerLost,
                   {"broadcast from rank 0: ", "missing rank ", "2 (has left)"});
    }
  });
}

TEST(Broadcast, WithoutAProcessEndsInAnErrorThatNamesIt) {
  const auto statuses = run_processes(3, [](World world) {
    world.barrier();
    if (world.rank() == 2) {
      _exit(9);
    }
    char byte = 0;
    expect_error([&] { world.broadcast(&byte, 1, 2); }, ExitCode::PeerLost,
                 {"broadcast from rank 2 failed: ", "Another rank has ended"});
    if (testing::Test::HasFailure()) {
      throw std::runtime_error("another message");
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 9}));
}

}  // namespace
}  // namespace sherd::test
