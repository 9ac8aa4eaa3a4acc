// Ranks of several hosts: a host holds a gathered segment once, each shard crosses to it once,
// nothing is written that another rank still reads, and no bit differs from what process groups
// give.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/expect_error.h"
#include "tests/support/processes.h"
#include "tests/support/train_small_net.h"

namespace sherd::test {
namespace {

using std::chrono::milliseconds;

class Hosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_play_hosts()) {
      GTEST_SKIP() << "ranks play several hosts as several users, which takes root";
    }
  }
};

/// A communicator of all ranks with a block and the root in bf16.
struct Gathered {
  static constexpr int64_t kBytes = int64_t{2} << 20;  // of a piece
  explicit Gathered(World world, int64_t piece_numel = kBytes / 2)
      : numel(piece_numel),
        communicator(world.make_communicator({0, 1, world.size()})),
        ledger(std::make_shared<MemoryLedger>()) {
    communicator->attach(
        {{.name = "block", .shard_numel = numel, .dtype = c10::kBFloat16},
         {.name = "root", .shard_numel = 64, .dtype = c10::kBFloat16, .is_root = true}},
        c10::kCPU, ledger);
  }
  Communicator* operator->() const { return communicator.get(); }

  void write(uint16_t value) const {
    communicator->begin_update(0);
    std::fill_n(static_cast<uint16_t*>(communicator->travelling_shard(0)), numel, value);
    communicator->publish(0);
  }
  /// Gathers, reads every element of each rank's piece, and releases.
  void read(int ranks, const std::function<uint16_t(int rank)>& expected,
            milliseconds before_reading = milliseconds(0)) const {
    const auto* gathered = static_cast<const uint16_t*>(communicator->gather(0, nullptr, {}));
    communicator->wait_gather(0);
    std::this_thread::sleep_for(before_reading);
    for (int rank = 0; rank < ranks; ++rank) {
      const uint16_t value = expected(rank);
      for (int64_t i = 0; i < numel; ++i) {
        TORCH_CHECK(gathered[numel * rank + i] == value, "rank ", rank, "'s piece holds ",
                    gathered[numel * rank + i], " instead of ", value);
      }
    }
    communicator->release(0);
  }

  int64_t numel;  ///< of a piece
  std::unique_ptr<Communicator> communicator;
  std::shared_ptr<MemoryLedger> ledger;
};

TEST_F(Hosts, AShardCrossesToAnotherHostOnceAndLiesThereOnce) {
  for (const auto& [hosts, local_size] : {std::pair{2, 2}, std::pair{3, 2}, std::pair{2, 3}}) {
    const int ranks = hosts * local_size;
    const auto statuses = run_processes_on_hosts(hosts, local_size, [=](World world) {
      const Gathered segments(world);
      TORCH_CHECK(
          segments->transport() == "shared memory within hosts, process groups (gloo) between them",
          segments->transport());
      segments.write(static_cast<uint16_t>(100 + world.rank()));
      segments.read(ranks, [](int rank) { return static_cast<uint16_t>(100 + rank); });
      TORCH_CHECK(segments->counts().bytes_sent == (hosts - 1) * Gathered::kBytes,
                  segments->counts().bytes_sent, " bytes were sent");
      TORCH_CHECK(segments->gathers_in_place());
    });
    EXPECT_EQ(statuses, zeros(ranks)) << hosts << " hosts of " << local_size;
  }
}

TEST_F(Hosts, NothingIsReceivedOverWhatAnotherRankOfTheHostReads) {
  const auto statuses = run_processes_on_hosts(2, 2, [](World world) {
    const Gathered segments(world);
    for (uint16_t version = 1; version <= 8; ++version) {
      segments.write(version);
      const auto same = [version](int) { return version; };
      // One rank after the other is far behind the rest.
      const milliseconds late(world.rank() == version % 4 ? 20 : 0);
      segments.read(4, same, late);
      segments.read(4, same, late);
    }
  });
  EXPECT_EQ(statuses, zeros(4));
}

// Rank 2 has to receive late, since rank 3 reads late; ranks 0 and 1 are done with both by then.
TEST_F(Hosts, AShardIsNotRewrittenWhileItIsSent) {
  const auto statuses = run_processes_on_hosts(2, 2, [](World world) {
    const int64_t numel = int64_t{8} << 20;  // more than a socket holds
    const Gathered segments(world, numel);
    const auto of_version = [](uint16_t version) { return [version](int) { return version; }; };
    segments.write(1);
    segments.read(4, of_version(1), milliseconds(world.rank() == 3 ? 200 : 0));
    const auto* gathered = static_cast<const uint16_t*>(segments->gather(0, nullptr, {}));
    std::this_thread::sleep_for(milliseconds(world.rank() == 2 ? 600 : 0));
    segments->wait_gather(0);
    TORCH_CHECK(std::all_of(gathered, gathered + 4 * numel, [](uint16_t of) { return of == 1; }));
    segments->release(0);
    segments.write(2);
    segments.read(4, of_version(2));
  });
  EXPECT_EQ(statuses, zeros(4));
}

int64_t shared_resident_bytes() {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool is_shared_file = false;
  int64_t kibibytes = 0;
  while (std::getline(smaps, line)) {
    if (line.find("memfd:sherd") != std::string::npos) {
      is_shared_file = true;
    } else if (line.find('-') < 20 && line.find(' ') > line.find('-')) {
      is_shared_file = false;
    }
    if (is_shared_file && line.rfind("Rss:", 0) == 0) {
      int64_t found = 0;
      std::istringstream(line.substr(4)) >> found;
      kibibytes += found;
    }
  }
  return kibibytes * 1024;
}

TEST_F(Hosts, WhatCameFromOtherHostsGoesBackToTheSystem) {
  const auto statuses = run_processes_on_hosts(2, 2, [](World world) {
    const Gathered segments(world);
    segments.write(7);
    const int64_t of_rank = segments.ledger->total_bytes();
    segments->gather(0, nullptr, {});
    segments->wait_gather(0);
    TORCH_CHECK(segments.ledger->bytes(MemoryKind::Gathered) == Gathered::kBytes,
                segments.ledger->bytes(MemoryKind::Gathered), " bytes are counted");
    segments->release(0);
    TORCH_CHECK(segments.ledger->total_bytes() == of_rank);
    segments->barrier();
    segments->gather(1, nullptr, {});  // a rank that was early gives back with its next call
    segments->wait_gather(1);
    segments->release(1);
    segments->barrier();
    // The pages that this process maps: its own piece, and at most the edges of others.
    const int64_t resident = shared_resident_bytes();
    TORCH_CHECK(resident < Gathered::kBytes * 5 / 2, resident, " bytes are still resident");
    segments.read(4, [](int) { return uint16_t{7}; });  // and come back
  });
  EXPECT_EQ(statuses, zeros(4));
}

TEST_F(Hosts, TrainAsAWorldOfOneDoes) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Strategy strategy :
         {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard}) {
      const ShardOptions whole{.precision = {.param_dtype = dtype}};
      const SmallOutcome one = train_small_net(World::alone(), {2 * 4, whole});
      const ShardOptions options{strategy, {.param_dtype = dtype}, 2};
      const auto statuses = run_processes_on_hosts(2, 2, [&](World world) {
        check_equal_bits(one, train_small_net(world, {2, options}));
      });
      EXPECT_EQ(statuses, zeros(4)) << name_of(strategy);
    }
  }
}

// Rows within hosts, replicas across them.
TEST_F(Hosts, OfHybridShardingGatherWithinThemselves) {
  const auto statuses = run_processes_on_hosts(2, 2, [](World world) {
    const ShardOptions options{Strategy::HybridShard, {}, 1};
    train_small_net(world, {1, options, 2});
    TORCH_CHECK(world.transport() == "shared memory, process groups (gloo)", world.transport());
  });
  EXPECT_EQ(statuses, zeros(4));
}

TEST_F(Hosts, ARankThatEndsIsNamedOnItsHostAndElsewhere) {
  const auto statuses = run_processes_on_hosts(2, 2, [](World world) {
    const Gathered segments(world);
    segments.write(1);
    segments.read(4, [](int) { return uint16_t{1}; });
    world.barrier();  // a connection that breaks takes what was on its way with it
    if (world.rank() == 3) {
      ::raise(SIGKILL);
    }
    expect_error([&] { segments.read(4, [](int) { return uint16_t{1}; }); }, ExitCode::PeerLost,
                 {world.rank() == 0 ? "all-gather of unit 'block'" : "'block'"});
    if (testing::Test::HasFailure()) {
      throw std::runtime_error("an expectation failed");
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, 128 + SIGKILL}));
}

// A failure on all ranks in the middle of a step, with gathers under way, leaves them in step.
TEST_F(Hosts, GoOnAfterAStepThatFailed) {
  const auto statuses = run_processes_on_hosts(2, 2, [](World world) {
    const Gathered segments(world);
    segments.write(3);
    segments->gather(0, nullptr, {});
    if (world.rank() % 2 == 1) {  // these have come further
      segments->wait_gather(0);
    }
    segments->abandon();
    for (uint16_t version = 4; version < 8; ++version) {
      segments.write(version);
      segments.read(4, [version](int) { return version; });
    }
  });
  EXPECT_EQ(statuses, zeros(4));
}

// Rank 1 lets go of its gathers in another order than rank 0 waits for them.
TEST_F(Hosts, ARankThatFailsAloneHoldsUpNobody) {
  const auto statuses = run_processes_on_hosts(2, 2, [](World world) {
    const Gathered segments(world);
    segments.write(3);
    segments->begin_update(1);
    segments->publish(1);
    segments->gather(1, nullptr, {});
    segments->gather(0, nullptr, {});
    if (world.rank() == 1) {
      segments->abandon();
      return;
    }
    segments->wait_gather(1);
    segments->wait_gather(0);
    segments->release(1);
    segments->release(0);
  });
  EXPECT_EQ(statuses, zeros(4));
}

TEST_F(Hosts, HoldNoMoreThanIsPlanned) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp}) {
    const auto statuses = run_processes_on_hosts(2, 2, [=](World world) {
      const ShardOptions options{strategy, {.param_dtype = at::kBFloat16}, 1};
      auto model = fully_shard(make_net(), mesh_for(world, strategy), options);
      AdamW optimizer(model, {.lr = 1e-2});
      const int64_t planned = model.planned_peak_bytes();
      for (int step = 0; step < 3; ++step) {
        const Example example = make_example(step);
        sum_of_errors(model(example.x), example.y).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      TORCH_CHECK(model.memory().peak_bytes() <= planned, model.memory().peak_bytes(),
                  " bytes were held, and ", planned, " planned");
    });
    EXPECT_EQ(statuses, zeros(4)) << name_of(strategy);
  }
}

}  // namespace
}  // namespace sherd::test
