// What all communicators do alike: bounded memory, observers, cancelling, identities, back ends
// from outside.

#include <algorithm>
#include <future>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "src/comm/buffers.h"
#include "src/comm/exchange.h"
#include "src/rendezvous/gpus.h"
#include "tests/support/decorated_world.h"
#include "tests/support/expect_error.h"
#include "tests/support/mailbox_backend.h"
#include "tests/support/parity.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::test {
namespace {

using Operation = Collective::Operation;

void throw_on_a_failure() {
  if (testing::Test::HasFailure()) {
    throw std::runtime_error("an expectation failed");
  }
}

/// Runs it over threads, over mailboxes of threads, over shared memory and over process groups.
void over_all_transports(int ranks, const std::function<void(World)>& body) {
  run_ranks(ranks, body);
  run_ranks(ranks, [&](const World& world) { body(mailbox_world(world)); });
  for (const Transport transport : kTransports) {
    EXPECT_EQ(run_processes_over(transport, ranks, body),
              std::vector<int>(static_cast<size_t>(ranks), 0));
  }
}

constexpr int kWidths = 24;
constexpr int64_t kLine = 64;  // elements

/// 24 segments of as many sizes, and where each rank's piece of their sums goes.
struct Wide {
  explicit Wide(World& world, bool roots = false)
      : communicator(world.make_communicator({0, 1, world.size()})),
        ledger(std::make_shared<MemoryLedger>()) {
    std::vector<SegmentSpec> specs;
    for (int i = 1; i <= kWidths; ++i) {
      specs.push_back({.name = "unit" + std::to_string(i),
                       .shard_numel = kLine * i,
                       .dtype = at::kBFloat16,
                       .is_root = roots});
    }
    communicator->attach(std::move(specs), c10::kCPU, ledger);
  }
  void reduce(Communicator::Segment segment, const float* source) {
    const Communicator::Reduction target{sums.data(), false, 1.0F, source};
    if (source == nullptr) {
      static_cast<void>(communicator->acquire_reduce_buffer(segment, target));
    }
    communicator->reduce(segment, target);
  }
  std::unique_ptr<Communicator> communicator;
  std::shared_ptr<MemoryLedger> ledger;
  std::vector<float> sums = std::vector<float>(kLine * kWidths);
};

// Up and down the sizes, in bf16 and as fp32 sums of micro-batches.
void check_received_bytes(World& world, bool roots) {
  Wide wide(world, roots);
  const std::vector<float> source(static_cast<size_t>(kLine * kWidths * world.size()));
  std::vector<int> order(kWidths);
  std::iota(order.begin(), order.end(), 0);
  const int64_t most = wide.communicator->most_received_bytes();
  const int64_t largest = 4 * kLine * kWidths * world.size();
  TORCH_CHECK(most <= 2 * largest, most, " bytes are received, more than two of the largest");
  for (int round = 0; round < 4; ++round) {
    for (const int segment : order) {
      wide.reduce(segment, round < 2 ? nullptr : source.data());
      TORCH_CHECK(wide.ledger->bytes(MemoryKind::ReceiveBuffer) <= most, "unit ", segment, ": ",
                  wide.ledger->bytes(MemoryKind::ReceiveBuffer), " of ", most);
      if (segment % 5 == 0) {  // the same once more, so that both in flight are of one size
        wide.reduce(segment, source.data());
      }
    }
    std::reverse(order.begin(), order.end());
  }
  wide.communicator->finish_reductions();
}

TEST(Received, StaysBelowTwoOfTheLargestWhateverTheWidths) {
  for (const bool roots : {false, true}) {
    over_all_transports(3, [&](World world) { check_received_bytes(world, roots); });
  }
}

TEST(ReceivePool, FreesWhatIsInTheWay) {
  auto ledger = std::make_shared<MemoryLedger>();
  const auto held = [&] { return ledger->bytes(MemoryKind::ReceiveBuffer); };
  detail::BufferPool pool(detail::allocate_on(c10::kCPU, MemoryKind::ReceiveBuffer, ledger), 100);
  for (int64_t bytes = 1; bytes <= 60; ++bytes) {
    pool.give(pool.take(bytes));
    EXPECT_LE(held(), 100);
  }
  void* const first = pool.take(10);
  EXPECT_LE(held(), 100);
  EXPECT_FALSE(pool.has_room_for(101));
  void* const second = pool.take(40);
  EXPECT_NE(first, second);
  EXPECT_LE(held(), 100);
  EXPECT_FALSE(pool.has_room_for(1));
  pool.give(first);
  EXPECT_TRUE(pool.has_room_for(1));
  pool.give(second);
}

TEST(NcclErrors, AreToldByTheirLastLines) {
  using detail::nccl_reason;
  const std::string thrown =
      "NCCL error in: /pytorch/torch/csrc/ProcessGroupNCCL.cpp:3550, unhandled system error (run "
      "with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclSystemError: System call failed "
      "or external library call failed. \nLast error:\n";
  EXPECT_EQ(nccl_reason(thrown + "socketPollConnect: refused.\n\nNo route to host\n"),
            "socketPollConnect: refused.; No route to host");
  EXPECT_EQ(nccl_reason("NCCL communicator was aborted on rank 1. Original reason for failure "
                        "was: " +
                        thrown + "closed by peer"),
            "closed by peer");
  EXPECT_EQ(nccl_reason(thrown), "an error of which it says nothing");
  EXPECT_EQ(nccl_reason("NCCL error: an operation has timed out"),
            "NCCL error: an operation has timed out");
  EXPECT_EQ(nccl_reason("[/gloo/transport/tcp/pair.cc:589] Connection reset by peer"), "");
}

TEST(SharedGpus, AreToldByTheirUuidAndByGroup) {
  // Under CUDA_VISIBLE_DEVICES each of these is cuda:0.
  const std::vector<std::string> gpus = {"GPU-a", "GPU-b", "GPU-c", "GPU-a"};
  EXPECT_FALSE(detail::shared_gpu(gpus, {0, 1, 3}));
  EXPECT_FALSE(detail::shared_gpu(gpus, {1, 2, 2}));
  EXPECT_FALSE(detail::shared_gpu(gpus, {3, 1, 1}));
  const auto shared = detail::shared_gpu(gpus, {0, 1, 4});
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->rank, 0);
  EXPECT_EQ(shared->other, 3);
  EXPECT_EQ(shared->gpu, "GPU-a");
  EXPECT_TRUE(detail::shared_gpu(gpus, {0, 3, 2}));
}

TEST(TransportText, SaysWhatCarriesTheBytes) {
  World alone = World::alone();
  EXPECT_EQ(alone.transport(), "");
  static_cast<void>(alone.make_communicator({}));
  EXPECT_EQ(alone.transport(), "nothing (one rank)");
  run_ranks(2, [](World world) {
    for (int i = 0; i < 2; ++i) {
      static_cast<void>(world.make_communicator({0, 1, 2}));
    }
    EXPECT_EQ(world.transport(), "threads of one process");
    static_cast<void>(world.make_communicator({world.rank(), 1, 1}));
    EXPECT_EQ(world.transport(), "threads of one process");  // as with Strategy::NoShard
    World other = mailbox_world(world);
    static_cast<void>(other.make_communicator({0, 1, 2}));
    EXPECT_EQ(other.transport(), "a communicator of the caller's");
  });
  for (const Transport transport : kTransports) {
    const auto statuses = run_processes_over(transport, 2, [&](World world) {
      static_cast<void>(world.make_communicator({0, 1, 2}));
      TORCH_CHECK(
          world.transport() ==
              (transport == Transport::SharedMemory ? "shared memory" : "process groups (gloo)"),
          world.transport());
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
  }
}

TEST(NativeReduceScatter, IsRefusedWithoutGpus) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(fork_rank(socket, rank, 2, [] {
      expect_error(
          [] {
            World::from_environment(
                {.timeout = std::chrono::seconds(20), .reduce_scatter = ReduceScatter::Native});
          },
          ExitCode::Unavailable, {"without GPUs", "leave reduce_scatter at rank order"});
      throw_on_a_failure();
    }));
  }
  EXPECT_EQ(statuses_of(children), (std::vector<int>{0, 0}));
}

/// Keeps what it is told; throws where it is told to.
class Recorder final : public CollectiveObserver {
 public:
  struct Entry {
    char event;
    Collective collective;
  };
  void started(const Collective& collective) override {
    if (--fails_in == 0) {
      throw Error(ExitCode::OutOfMemory, "told to fail");
    }
    entries.push_back({'s', collective});
  }
  void waiting(const Collective& collective) override { entries.push_back({'w', collective}); }
  void ended(const Collective& collective) override { entries.push_back({'e', collective}); }
  [[nodiscard]] int64_t count(char event, Operation operation) const {
    return std::count_if(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.event == event && entry.collective.operation == operation;
    });
  }
  [[nodiscard]] int64_t bytes(char event, Operation operation) const {
    int64_t sum = 0;
    for (const Entry& entry : entries) {
      sum += entry.event == event && entry.collective.operation == operation
                 ? entry.collective.bytes
                 : 0;
    }
    return sum;
  }
  std::vector<Entry> entries;
  int fails_in = 0;
};

TEST(Observer, IsToldOfEachCollectiveOnEveryTransport) {
  over_all_transports(2, [](World world) {
    const auto recorder = std::make_shared<Recorder>();
    world.set_observer(recorder);
    auto model = fully_shard(make_net(), Mesh::shard(world));
    EXPECT_EQ(recorder->count('e', Operation::Connect), 1);
    EXPECT_EQ(recorder->count('e', Operation::Attach), 1);
    EXPECT_EQ(recorder->count('e', Operation::Update), 4) << "each segment is published";
    recorder->entries.clear();
    AdamW optimizer(model);
    const auto before = model.counts();
    for (int step = 0; step < 2; ++step) {
      model(make_example(step).x).sum().backward();
      clip_grad_norm(model, 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto after = model.counts();
    for (const char event : {'s', 'w', 'e'}) {
      EXPECT_EQ(recorder->count(event, Operation::Gather), after.gathers - before.gathers);
      EXPECT_EQ(recorder->count(event, Operation::Reduction), after.reductions - before.reductions);
      EXPECT_GE(recorder->count(event, Operation::AllReduce),
                after.all_reduces - before.all_reduces);
    }
    EXPECT_GT(recorder->bytes('e', Operation::Reduction), 0);
    EXPECT_EQ(recorder->bytes('s', Operation::Reduction),
              recorder->bytes('e', Operation::Reduction));
    const auto gather = std::find_if(
        recorder->entries.begin(), recorder->entries.end(),
        [](const auto& entry) { return entry.collective.operation == Operation::Gather; });
    EXPECT_EQ(gather->collective.unit, "root");
    EXPECT_EQ(gather->collective.segment, 0);
    recorder->entries.clear();
    static_cast<void>(world.all_gather("text"));
    world.barrier();
    double number = 1;
    world.broadcast(&number, sizeof number, 1);
    EXPECT_EQ(recorder->count('e', Operation::Texts), 1);
    EXPECT_EQ(recorder->count('e', Operation::Barrier), 1);
    EXPECT_EQ(recorder->bytes('e', Operation::Broadcast), 8);
    world.send(&number, sizeof number, 1, 0);
    EXPECT_EQ(recorder->bytes('e', Operation::Send), 8);
    throw_on_a_failure();
  });
}

TEST(Observer, ThatThrowsEndsTheCollective) {
  over_all_transports(2, [](World world) {
    const auto recorder = std::make_shared<Recorder>();
    world.set_observer(recorder);
    auto model = fully_shard(make_net(), Mesh::shard(world));
    const at::Tensor expected = model(make_example(1).x).detach();
    recorder->fails_in = 2;
    expect_error([&] { model(make_example(1).x); }, ExitCode::OutOfMemory, {"told to fail"});
    EXPECT_TRUE(at::equal(model(make_example(1).x).detach(), expected));
    throw_on_a_failure();
  });
}

constexpr std::chrono::seconds kTimeout{30};

// A rank that waits for one that does not come is told to stop by another of its threads, and the
// one that comes too late finds it gone.
void check_cancelling(World world) {
  const auto begin = std::chrono::steady_clock::now();
  const auto communicator = world.make_communicator({0, 1, 2});
  communicator->attach({{.name = "unit", .shard_numel = kLine}}, c10::kCPU,
                       std::make_shared<MemoryLedger>());
  std::vector<float> sum(kLine);
  const Communicator::Reduction target{sum.data()};
  if (world.rank() == 0) {
    static_cast<void>(communicator->acquire_reduce_buffer(0, target));
    communicator->reduce(0, target);
    std::thread canceller([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      communicator->cancel("no patience");
    });
    expect_error([&] { communicator->finish_reductions(); }, ExitCode::PeerLost,
                 {"reduction of unit 'unit'", "was cancelled: no patience"});
    canceller.join();
    expect_error([&] { communicator->barrier(); }, ExitCode::PeerLost, {"no patience"});
    expect_error([&] { static_cast<void>(communicator->gather(0, nullptr, {})); },
                 ExitCode::PeerLost, {"no patience"});
    EXPECT_NO_THROW(communicator->abandon());
    world.barrier();
  } else {
    world.barrier();
    expect_error([&] { communicator->barrier(); }, ExitCode::PeerLost, {"0 (has left)"});
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kTimeout / 2);
  world.barrier();  // nobody leaves before
  throw_on_a_failure();
}

TEST(Cancelled, WaitsEndAtOnceAmongThreads) {
  run_ranks(2, check_cancelling, kTimeout);
}

TEST(Cancelled, WaitsEndAtOnceInSharedMemory) {
  EXPECT_EQ(run_processes_over(Transport::SharedMemory, 2, check_cancelling, kTimeout),
            (std::vector<int>{0, 0}));
}

// Gloo cannot be interrupted: what is called after it is refused at once, and abandon() waits for
// nothing.
TEST(Cancelled, NothingIsCalledAnyMoreOverProcessGroups) {
  const auto statuses = run_processes_over(Transport::ProcessGroups, 2, [](World world) {
    const auto communicator = world.make_communicator({0, 1, 2});
    communicator->attach({{.name = "unit", .shard_numel = kLine}}, c10::kCPU,
                         std::make_shared<MemoryLedger>());
    std::vector<float> sum(kLine);
    if (world.rank() == 0) {
      static_cast<void>(communicator->acquire_reduce_buffer(0, {sum.data()}));
      communicator->reduce(0, {sum.data()});
      communicator->cancel("no patience");
      expect_error([&] { communicator->finish_reductions(); }, ExitCode::PeerLost,
                   {"process groups (gloo)", "no patience"});
      communicator->abandon();
    }
    world.barrier();
    throw_on_a_failure();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

std::unique_ptr<Communicator> communicator_of_two_units(World& world, int64_t numel_of_b) {
  auto communicator = world.make_communicator({0, 1, 2});
  communicator->attach(
      {{.name = "a", .shard_numel = kLine}, {.name = "b", .shard_numel = numel_of_b}}, c10::kCPU,
      std::make_shared<MemoryLedger>());
  communicator->barrier();
  return communicator;
}

// One rank has gathered what the other has not: over process groups the gather says so, else the
// next number that goes round.
TEST(Identity, OfEveryCollectiveIsComparedOnEveryTransport) {
  over_all_transports(2, [](World world) {
    const auto communicator = communicator_of_two_units(world, kLine);
    const bool over_groups = communicator->transport().starts_with("process groups");
    std::vector<float> slot(static_cast<size_t>(2 * kLine));
    const int segment = world.rank();
    double value = 1;
    expect_error(
        [&] {
          static_cast<void>(communicator->gather(segment, slot.data(), {}));
          communicator->wait_gather(segment);
          EXPECT_FALSE(over_groups);
          communicator->all_reduce({&value, 1}, ReduceOp::Sum);
        },
        ExitCode::RanksDisagree,
        {(over_groups ? std::string("all-gather of unit '") + "ab"[segment] + "'" : "all-reduce") +
         ": ranks are out of step. Rank " + std::to_string(1 - world.rank())});
    throw_on_a_failure();
  });
}

// Gloo would end the process where messages of several lengths meet.
TEST(Identity, OfGathersOfSeveralLengthsIsCompared) {
  const auto statuses = run_processes_over(Transport::ProcessGroups, 2, [](World world) {
    const auto communicator = communicator_of_two_units(world, 10 * kLine);
    std::vector<float> slot(static_cast<size_t>(20 * kLine));
    const int segment = world.rank();
    expect_error(
        [&] {
          static_cast<void>(communicator->gather(segment, slot.data(), {}));
          communicator->wait_gather(segment);
        },
        ExitCode::RanksDisagree, {"all-gather of unit '", "': ranks are out of step. Rank "});
    communicator->abandon();
    throw_on_a_failure();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

// Rank 1 leaves a step out: the others' gather meets its all-reduce.
TEST(Identity, OfAGatherThatMeetsNumbersIsCompared) {
  for (const size_t count : {1, 1000}) {
    const auto statuses = run_processes_over(Transport::ProcessGroups, 3, [&](World world) {
      auto communicator = world.make_communicator({0, 1, 3});
      communicator->attach({{.name = "a", .shard_numel = kLine}}, c10::kCPU,
                           std::make_shared<MemoryLedger>());
      std::vector<float> slot(static_cast<size_t>(3 * kLine));
      std::vector<double> values(count);
      const bool leaves_out = world.rank() == 1;
      expect_error(
          [&] {
            if (leaves_out) {
              communicator->all_reduce(values, ReduceOp::Sum);
            } else {
              static_cast<void>(communicator->gather(0, slot.data(), {}));
              communicator->wait_gather(0);
            }
          },
          ExitCode::RanksDisagree,
          {leaves_out
               ? "all-reduce: ranks are out of step. Rank 0 has run other units"
               : "all-gather of unit 'a': ranks are out of step. Rank 1 has run other units"});
      communicator->abandon();
      throw_on_a_failure();
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0}));
  }
}

TEST(Identity, OfNumbersIsComparedToo) {
  over_all_transports(2, [](World world) {
    double value = 1;
    const auto op = world.rank() == 0 ? ReduceOp::Sum : ReduceOp::Max;
    expect_error(
        [&] {
          world.all_reduce({&value, 1}, op);
        },
        ExitCode::RanksDisagree, {"ranks are out of step"});
    throw_on_a_failure();
  });
}

// A back end of the caller's own trains the bits of the library's.
TEST(BackendFromOutside, TrainsTheSameBits) {
  for (const Strategy strategy :
       {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard, Strategy::HybridShard}) {
    for (const bool bfloat16 : {false, true}) {
      const Setting setting{.max_norm = 0.1, .bfloat16 = bfloat16, .strategy = strategy};
      const Cut cut{4, 1};
      const Difference d =
          difference(train_sharded(cut, setting), train_sharded(cut, setting, mailbox_world));
      EXPECT_EQ(std::max({d.loss, d.norm, d.gradient, d.parameter}), 0) << d;
    }
  }
}

TEST(BackendFromOutside, GetsTextsAndBroadcastsFromItsNumbers) {
  run_ranks(3, [](const World& threads) {
    World world = mailbox_world(threads);
    for (const size_t length : {0, 1, 5, 6, 7, 1000}) {
      std::string mine;
      for (size_t i = 0; i < length * static_cast<size_t>(world.rank() + 1); ++i) {
        mine += static_cast<char>(i * 37 + static_cast<size_t>(world.rank()));
      }
      const std::vector<std::string> all = world.all_gather(mine);
      ASSERT_EQ(all.size(), 3U);
      EXPECT_EQ(all[static_cast<size_t>(world.rank())], mine);
      for (size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(all[rank].size(), length * (rank + 1));
      }
    }
    std::vector<char> bytes(100'003, static_cast<char>(world.rank()));
    std::iota(bytes.begin(), bytes.end(), static_cast<char>(world.rank()));
    world.broadcast(bytes.data(), static_cast<int64_t>(bytes.size()), 2);
    for (size_t i = 0; i < bytes.size(); ++i) {
      ASSERT_EQ(bytes[i], static_cast<char>(i + 2)) << i;
    }
  });
}

TEST(BackendFromOutside, ThatMakesNoSenseIsRefused) {
  expect_error([] { static_cast<void>(World::over(nullptr)); }, ExitCode::Usage,
               {"[World::over] the back end is null"});
  const auto office = std::make_shared<MailboxOffice>();
  expect_error([&] { static_cast<void>(World::over(std::make_shared<MailboxBackend>(office, 1))); },
               ExitCode::Usage, {"[World::over] the back end says that it is rank 1 of 1."});
}

}  // namespace
}  // namespace sherd::test
