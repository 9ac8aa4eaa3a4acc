// Ranks of one host that share memory: nothing is moved, nothing is written that another still
// reads, who is gone is noticed, and nothing is left behind.

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "sherd/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/failing_files.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/train_small_net.h"
#include "tests/support/whole_state.h"

namespace sherd::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::vector<int> run_sharing(int ranks, const std::function<void(World)>& body,
                             milliseconds timeout = std::chrono::seconds(20)) {
  return run_processes_over(Transport::SharedMemory, ranks, body, timeout);
}

// In a rank, where a failed expectation must end it with another status.
void throw_on_failure() {
  if (testing::Test::HasFailure()) {
    throw std::runtime_error("an expectation failed");
  }
}

/// A communicator with three segments in bf16: two blocks and the root.
struct Shared {
  static constexpr int64_t kNumel = 1024;  // of a piece
  explicit Shared(World world)
      : communicator(world.make_communicator({0, 1, world.size()})),
        ledger(std::make_shared<MemoryLedger>()) {
    communicator->attach(
        {{.name = "block0", .shard_numel = kNumel, .dtype = c10::kBFloat16},
         {.name = "block1", .shard_numel = kNumel / 2, .dtype = c10::kBFloat16},
         {.name = "root", .shard_numel = 2 * kNumel, .dtype = c10::kBFloat16, .is_root = true}},
        c10::kCPU, ledger);
  }
  Communicator* operator->() const { return communicator.get(); }
  std::unique_ptr<Communicator> communicator;
  std::shared_ptr<MemoryLedger> ledger;
};

uint16_t* halves(void* data) {
  return static_cast<uint16_t*>(data);
}

void fill(void* data, int64_t numel, uint16_t value) {
  std::fill_n(halves(data), numel, value);
}

TEST(SharedMemory, AGatherIsAPointerToWhatTheOthersWrote) {
  const auto statuses = run_sharing(3, [](World world) {
    const Shared shared(world);
    fill(shared->travelling_shard(0), Shared::kNumel, static_cast<uint16_t>(100 + world.rank()));
    shared->begin_update(0);
    shared->publish(0);
    auto* gathered = halves(shared->gather(0, nullptr, {}));
    shared->wait_gather(0);
    EXPECT_TRUE(shared->gathers_in_place());
    EXPECT_EQ(shared->travelling_shard(0), gathered + Shared::kNumel * world.rank());
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(gathered[Shared::kNumel * rank], 100 + rank);
      EXPECT_EQ(gathered[Shared::kNumel * (rank + 1) - 1], 100 + rank);
    }
    shared->release(0);
    EXPECT_EQ(shared->counts().gathers, 1);
    EXPECT_EQ(shared->counts().bytes_sent, 0);
    EXPECT_EQ(shared.ledger->bytes(MemoryKind::TravellingShard), 2 * Shared::kNumel * 7 / 2);
    EXPECT_EQ(shared.ledger->total_bytes(), 2 * Shared::kNumel * 7 / 2);
    throw_on_failure();
  });
  EXPECT_EQ(statuses, zeros(3));
}

TEST(SharedMemory, AShardIsNotRewrittenWhileItIsRead) {
  const auto statuses = run_sharing(2, [](World world) {
    const Shared shared(world);
    for (uint16_t version = 1; version <= 5; ++version) {
      shared->begin_update(0);
      fill(shared->travelling_shard(0), Shared::kNumel, version);
      shared->publish(0);
      auto* gathered = halves(shared->gather(0, nullptr, {}));
      shared->wait_gather(0);
      if (world.rank() == version % 2) {
        std::this_thread::sleep_for(milliseconds(20));  // the other one would be far ahead
      }
      for (int64_t i = 0; i < 2 * Shared::kNumel; ++i) {
        TORCH_CHECK(gathered[i] == version, "version ", version, " reads ", gathered[i]);
      }
      shared->release(0);
    }
  });
  EXPECT_EQ(statuses, zeros(2));
}

TEST(SharedMemory, AReaderWaitsForWhatIsNotPublishedYet) {
  const auto statuses = run_sharing(3, [](World world) {
    const Shared shared(world);
    shared->begin_update(1);
    if (world.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(50));
    }
    fill(shared->travelling_shard(1), Shared::kNumel / 2, 7);
    shared->publish(1);
    const auto* last = halves(shared->gather(1, nullptr, {})) + Shared::kNumel / 2 * 3 - 1;
    shared->wait_gather(1);
    TORCH_CHECK(*last == 7, "what rank 2 wrote is not there");
    shared->release(1);
  });
  EXPECT_EQ(statuses, zeros(3));
}

// Small whole numbers: every order of adding them gives the same, and bf16 holds them.
float gradient(int rank, int64_t element, int round) {
  return static_cast<float>((rank + 1) * (element % 13 + 1) + round);
}

// Of pieces of all ranks, for the piece of `rank`.
void check_sum(const std::vector<float>& sum, int rank, int ranks, int rounds) {
  const auto numel = static_cast<int64_t>(sum.size());
  for (int64_t i = 0; i < numel; ++i) {
    float expected = 0;
    for (int round = 0; round < rounds; ++round) {
      for (int other = 0; other < ranks; ++other) {
        expected += 0.5F * gradient(other, rank * numel + i, round);
      }
    }
    TORCH_CHECK(sum[static_cast<size_t>(i)] == expected, "element ", i, ": ",
                sum[static_cast<size_t>(i)], ", expected ", expected);
  }
}

void check_squares(const std::vector<float>& sum, double squares) {
  const double expected = std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0);
  TORCH_CHECK(std::abs(squares - expected) <= 1e-6 * expected, squares, ", expected ", expected);
}

// More in flight than there are buffers, of segments in turn.
TEST(SharedMemory, SumsGradientsOfAllRanks) {
  const auto statuses = run_sharing(3, [](World world) {
    const Shared shared(world);
    constexpr int kRounds = 4;
    std::vector<std::vector<float>> sums = {std::vector<float>(Shared::kNumel),
                                            std::vector<float>(Shared::kNumel / 2),
                                            std::vector<float>(2 * Shared::kNumel)};
    std::vector<double> squares(3);
    for (int round = 0; round < kRounds; ++round) {
      for (int segment = 0; segment < 3; ++segment) {
        std::vector<float>& sum = sums[static_cast<size_t>(segment)];
        const Communicator::Reduction target{sum.data(), round > 0, 0.5F, nullptr,
                                             &squares[static_cast<size_t>(segment)]};
        auto* buffer = static_cast<c10::BFloat16*>(shared->acquire_reduce_buffer(segment, target));
        for (int64_t i = 0; i < 3 * static_cast<int64_t>(sum.size()); ++i) {
          buffer[i] = gradient(world.rank(), i, round);
        }
        shared->reduce(segment, target);
        TORCH_CHECK(shared->reductions_in_flight() <= 2, "too many in flight");
      }
    }
    shared->finish_reductions();
    TORCH_CHECK(shared->reductions_in_flight() == 0, "unfinished");
    for (size_t segment = 0; segment < 3; ++segment) {
      check_sum(sums[segment], world.rank(), 3, kRounds);
      check_squares(sums[segment], squares[segment]);
    }
    // Two of a block's size, and the root's.
    TORCH_CHECK(shared.ledger->bytes(MemoryKind::ReduceBuffer) <= 2 * 3 * 4 * Shared::kNumel,
                shared.ledger->bytes(MemoryKind::ReduceBuffer));
  });
  EXPECT_EQ(statuses, zeros(3));
}

// fp32 gradients of a bf16 segment do not fit into its buffer: they go through it in parts.
TEST(SharedMemory, SumsTheEnginesOwnGradientsInParts) {
  const auto statuses = run_sharing(3, [](World world) {
    const Shared shared(world);
    std::vector<std::vector<float>> sources;
    std::vector<std::vector<float>> sums;
    std::vector<double> squares(3);
    for (int segment = 0; segment < 3; ++segment) {
      const int64_t numel = Shared::kNumel * std::vector<int64_t>{2, 1, 4}[segment] / 2;
      std::vector<float>& source = sources.emplace_back(static_cast<size_t>(3 * numel));
      for (int64_t i = 0; i < 3 * numel; ++i) {
        source[static_cast<size_t>(i)] = gradient(world.rank(), i, 0);
      }
      sums.emplace_back(static_cast<size_t>(numel));
    }
    for (size_t segment = 0; segment < 3; ++segment) {
      if (world.rank() == 1) {
        std::this_thread::sleep_for(milliseconds(5));
      }
      shared->reduce(static_cast<int>(segment), {sums[segment].data(), false, 0.5F,
                                                 sources[segment].data(), &squares[segment]});
    }
    shared->finish_reductions();
    for (size_t segment = 0; segment < 3; ++segment) {
      check_sum(sums[segment], world.rank(), 3, 1);
      check_squares(sums[segment], squares[segment]);
    }
  });
  EXPECT_EQ(statuses, zeros(3));
}

// Over process groups too, where messages of other sizes would end the process.
TEST(SharedMemory, RanksThatReduceDifferentUnitsAreToldSo) {
  for (const Transport transport : kTransports) {
    const auto statuses = run_processes_over(transport, 2, [](World world) {
      const Shared shared(world);
      std::vector<float> sum(Shared::kNumel);
      const int segment = world.rank();
      static_cast<void>(shared->acquire_reduce_buffer(segment, {sum.data()}));
      expect_error(
          [&] {
            shared->reduce(segment, {sum.data()});
            shared->finish_reductions();
          },
          ExitCode::RanksDisagree,
          {"reduction of unit 'block" + std::to_string(segment) + "': rank " +
           std::to_string(1 - segment) + " reduces unit 'block" + std::to_string(1 - segment) +
           "'. Every rank must run the same units in the same order."});
      throw_on_failure();
    });
    EXPECT_EQ(statuses, zeros(2));
  }
}

// Rank 0 has accumulated a micro-batch without communication, rank 1 has not.
TEST(SharedMemory, RanksThatReduceDifferentDtypesAreToldSo) {
  for (const Transport transport : kTransports) {
    const auto statuses = run_processes_over(transport, 2, [](World world) {
      const Shared shared(world);
      std::vector<float> sum(Shared::kNumel);
      const std::vector<float> source(2 * Shared::kNumel);
      const bool accumulated = world.rank() == 0;
      const Communicator::Reduction target{sum.data(), false, 1.0F,
                                           accumulated ? source.data() : nullptr};
      if (!accumulated) {
        static_cast<void>(shared->acquire_reduce_buffer(0, target));
      }
      expect_error(
          [&] {
            shared->reduce(0, target);
            shared->finish_reductions();
          },
          ExitCode::RanksDisagree,
          {"reduction of unit 'block0': rank " + std::to_string(1 - world.rank()) + " reduces " +
               (accumulated ? "BFloat16, this rank Float" : "Float, this rank BFloat16"),
           "Every rank must synchronise the same micro-batches."});
      throw_on_failure();
    });
    EXPECT_EQ(statuses, zeros(2));
  }
}

TEST(SharedMemory, ReducesNumbersInRankOrder) {
  const auto statuses = run_sharing(3, [](World world) {
    const Shared shared(world);
    for (int round = 0; round < 100; ++round) {
      std::vector<double> values(static_cast<size_t>(round * 2));
      std::iota(values.begin(), values.end(), world.rank());
      shared->all_reduce(values, round % 2 == 0 ? ReduceOp::Sum : ReduceOp::Max);
      for (size_t i = 0; i < values.size(); ++i) {
        const double x = static_cast<double>(i);
        TORCH_CHECK(values[i] == (round % 2 == 0 ? 3 * x + 3 : x + 2), round, ": ", values[i]);
      }
      shared->barrier();
    }
  });
  EXPECT_EQ(statuses, zeros(3));
}

/// A way of training whose every step crosses the communicators in its own way.
struct Way {
  Strategy strategy = Strategy::FullShard;
  bool bfloat16 = true;
  int reshard_after_forward_size = 0;
  bool in_backward = false;
  bool sync_each = true;
};

// Rank 0's losses, those of evaluation in full precision too, and the whole parameters.
std::vector<at::Tensor> train(const World& world, const Way& way) {
  ShardOptions options{.strategy = way.strategy,
                       .reshard_after_forward_size = way.reshard_after_forward_size};
  options.precision.full_precision_in_eval = true;
  if (way.bfloat16) {
    options.precision.param_dtype = at::kBFloat16;
  }
  auto model = fully_shard(make_net(), mesh_for(world, way.strategy), options);
  AdamW optimizer(model, {.lr = 1e-2}, {}, {.in_backward = way.in_backward});
  std::vector<at::Tensor> values;
  for (int step = 0; step < 3; ++step) {
    const int micro_batches = way.in_backward ? 1 : 3;
    for (int micro = 0; micro < micro_batches; ++micro) {
      model.set_requires_gradient_sync(micro == micro_batches - 1 || way.sync_each);
      const Example example = make_example((step * 3 + micro) * world.size() + world.rank());
      sum_of_errors(model(example.x), example.y).backward();
    }
    if (!way.in_backward) {
      clip_grad_norm(model, 0.5);
      static_cast<void>(model.parameter_shards());  // which applies the factor
    }
    optimizer.step();
    optimizer.zero_grad();
    const at::NoGradGuard no_grad;
    values.push_back(model(make_example(step).x).clone());
  }
  for (const auto& item : full_state_dict(model, {.rank0_only = false})) {
    values.push_back(item.value());
  }
  return values;
}

TEST(SharedMemory, ComputesTheBitsOfThreads) {
  std::vector<Way> ways = {{.reshard_after_forward_size = 2},
                           {.in_backward = true},
                           {.strategy = Strategy::HybridShard, .in_backward = true},
                           {.sync_each = false},
                           {.strategy = Strategy::HybridShard, .sync_each = false}};
  for (const Strategy strategy : kStrategies) {
    ways.push_back({.strategy = strategy});
    ways.push_back({.strategy = strategy, .bfloat16 = false});
  }
  std::vector<std::vector<at::Tensor>> expected(ways.size());
  for (size_t i = 0; i < ways.size(); ++i) {
    run_ranks(4, [&](World world) {
      auto values = train(world, ways[i]);
      if (world.rank() == 0) {
        expected[i] = std::move(values);
      }
    });
  }
  const auto statuses = run_sharing(4, [&](World world) {
    for (size_t i = 0; i < ways.size(); ++i) {
      const auto values = train(world, ways[i]);
      for (size_t v = 0; v < values.size(); ++v) {
        TORCH_CHECK(at::equal(values[v], expected[i][v]), "way ", i, ", value ", v);
      }
    }
  });
  EXPECT_EQ(statuses, zeros(4));
}

TEST(SharedMemory, GoesOnAfterAnExceptionThatAllRanksCaught) {
  const auto statuses = run_sharing(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    const auto gradient_of_first = [&] {
      model.zero_grad();
      sum_of_errors(model(make_example(1).x), make_example(1).y).backward();
      return model.parameter_shards().front().gradient.clone();
    };
    const at::Tensor expected = gradient_of_first();
    const auto blow = [](NetImpl& net, const at::Tensor& x) -> at::Tensor {
      static_cast<void>(net.blocks[0](net.input(x)));
      throw std::runtime_error("blown");
    };
    EXPECT_THROW(model.run(blow, make_example(1).x), std::runtime_error);
    EXPECT_TRUE(at::equal(gradient_of_first(), expected));
    throw_on_failure();
  });
  EXPECT_EQ(statuses, zeros(2));
}

TEST(SharedMemory, ARankThatIsKilledIsMissedAtOnce) {
  const auto statuses = run_sharing(3, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    const at::Tensor loss = model(make_example(1).x).sum();
    world.barrier();
    if (world.rank() == 2) {
      ::raise(SIGKILL);
    }
    const auto begin = Clock::now();
    expect_error(
        [&] { loss.backward(); }, ExitCode::PeerLost,
        {"in backward of step 1, on rank ", " of 3: reduction of unit 'block2': missing rank ",
         "2 (has ended). Its own message says why."});
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
    throw_on_failure();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL}));
}

TEST(SharedMemory, ARankThatHasLeftIsMissedAtOnce) {
  const auto statuses = run_sharing(2, [](World world) {
    auto shared = std::make_unique<Shared>(world);
    if (world.rank() == 1) {
      shared.reset();
      world.barrier();  // still there, but not in this
      return;
    }
    expect_error([&] { (*shared)->barrier(); }, ExitCode::PeerLost,
                 {"all-reduce: missing rank 1 (has left). Its own message says why."});
    world.barrier();
    throw_on_failure();
  });
  EXPECT_EQ(statuses, zeros(2));
}

TEST(SharedMemory, ATimeoutNamesWhoIsMissing) {
  const auto statuses = run_sharing(
      3,
      [](World world) {
        const Shared shared(world);
        if (world.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(3800));  // alive, and silent
          return;
        }
        expect_error([&] { shared->barrier(); }, ExitCode::Hang,
                     {"all-reduce timed out: missing rank 1. Every rank must reach this "
                      "collective; look at what they did instead."});
        throw_on_failure();
        std::this_thread::sleep_for(milliseconds(1000));  // the store lives with rank 0
      },
      milliseconds(1500));
  EXPECT_EQ(statuses, zeros(3));
}

// All on one core: who spun there would keep the others from what it waits for.
TEST(SharedMemory, MoreRanksThanCoresMakeProgress) {
  const SmallOutcome one = train_small_net(World::alone(), {.micro_batches = 4, .options = {}});
  const auto statuses = run_sharing(4, [&](World world) {
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    TORCH_CHECK(sched_setaffinity(0, sizeof first, &first) == 0, "no affinity");
    const auto begin = Clock::now();
    check_equal_bits(one, train_small_net(world, {.micro_batches = 1, .options = {}}));
    TORCH_CHECK(Clock::now() - begin < std::chrono::seconds(5), "hardly any progress");
  });
  EXPECT_EQ(statuses, zeros(4));
}

size_t entries_of(const char* folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

// Of this process: other tests of the machine may be handing over.
bool holds_hand_over_socket() {
  std::set<std::string> names;  // "socket:[number]"
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    names.insert(std::filesystem::read_symlink(entry, gone).string());
  }
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream words(line);
    std::string number;
    for (int field = 0; field < 7; ++field) {
      words >> number;
    }
    if (line.find("@sherd-") != std::string::npos && names.contains("socket:[" + number + "]")) {
      return true;
    }
  }
  return false;
}

TEST(SharedMemory, LeavesNothingBehind) {
  const size_t before = entries_of("/dev/shm");
  const auto statuses = run_sharing(2, [&](World world) {
    const size_t files = entries_of("/proc/self/fd");
    auto model = fully_shard(make_net(), Mesh::shard(world));
    model(make_example(1).x).sum().backward();
    TORCH_CHECK(entries_of("/proc/self/fd") == files, "file descriptors are kept open");
    world.barrier();
    TORCH_CHECK(!holds_hand_over_socket(), "a socket is kept open");
    TORCH_CHECK(entries_of("/dev/shm") == before, "memory has a name");
    world.barrier();
    ::raise(SIGKILL);
  });
  EXPECT_EQ(statuses, std::vector<int>(2, 128 + SIGKILL));
  EXPECT_EQ(entries_of("/dev/shm"), before);
}

// From now on this process's system calls `number` fail where their argument `argument` has one of
// `bits` set: what a sandbox or an old kernel does.
void deny(uint32_t number, uint32_t argument, uint32_t bits) {
  const auto offset = static_cast<uint32_t>(offsetof(seccomp_data, args)) + argument * 8;
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof rules / sizeof rules[0], rules};
  TORCH_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0,
              "no filter can be installed");
}

void deny_on(const World& world, int rank) {
  if (world.rank() == rank && rank == 0) {
    deny(SYS_memfd_create, 1, MFD_CLOEXEC);
  } else if (world.rank() == rank) {
    deny(SYS_mmap, 3, MAP_SHARED);
  }
}

TEST(SharedMemory, WhereOneRankCannotHaveItAllUseProcessGroups) {
  const SmallOutcome one = train_small_net(World::alone(), {.micro_batches = 2, .options = {}});
  for (const int faulty : {0, 1}) {
    const auto statuses = run_processes_over(Transport::Automatic, 2, [&](World world) {
      deny_on(world, faulty);
      check_equal_bits(one, train_small_net(world, {.micro_batches = 1, .options = {}}));
      TORCH_CHECK(!world.make_communicator({0, 1, 2})->gathers_in_place(), "shares memory");
    });
    EXPECT_EQ(statuses, zeros(2));
  }
}

// The region of the model is larger, that of the numbers is not.
TEST(SharedMemory, IsNotUsedWhereFilesAreLimitedBelowTheMemory) {
  const SmallOutcome one = train_small_net(World::alone(), {.micro_batches = 2, .options = {}});
  for (const int limited : {0, 1}) {
    const auto statuses = run_processes_over(Transport::Automatic, 2, [&](World world) {
      const FileSizeLimit limit(world.rank() == limited ? rlim_t{1} << 20 : RLIM_INFINITY);
      check_equal_bits(one, train_small_net(world, {.micro_batches = 1, .options = {}}));
      TORCH_CHECK(!world.make_communicator({0, 1, 2})->gathers_in_place(), "shares memory");
    });
    EXPECT_EQ(statuses, zeros(2));
  }
}

TEST(SharedMemory, ThatWasAskedForAndCannotBeHadIsAnErrorOnAllRanks) {
  const auto statuses = run_sharing(2, [](World world) {
    deny_on(world, 1);
    expect_error([&] { Shared shared(world); }, ExitCode::Unavailable,
                 {"[World] ranks 0 to 1 cannot share memory: rank 1: ",
                  " of shared memory: Cannot allocate memory. Raise the limits",
                  "WorldOptions::transport = Transport::Automatic exchanges over process groups"});
    throw_on_failure();
  });
  EXPECT_EQ(statuses, zeros(2));
}

TEST(SharedMemory, IsChosenWhereRanksShareAHostUnlessProcessGroupsAreAskedFor) {
  for (const bool automatic : {true, false}) {
    const auto transport = automatic ? Transport::Automatic : Transport::ProcessGroups;
    const auto statuses = run_processes_over(transport, 4, [&](World world) {
      const int first = world.rank() / 2 * 2;
      for (const RankGroup& group :
           {RankGroup{0, 1, 4}, RankGroup{first, 1, 2}, RankGroup{world.rank() % 2, 2, 2}}) {
        TORCH_CHECK(world.make_communicator(group)->gathers_in_place() == automatic);
      }
    });
    EXPECT_EQ(statuses, zeros(4));
  }
}

}  // namespace
}  // namespace sherd::test
