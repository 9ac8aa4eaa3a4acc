// Exchanges between devices with streams: which events gathers wait for, which thread starts what,
// and in which parts gradients are reduced.

#include <algorithm>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "storage/movable_storage.h"
#include "tests/fake_device/ranks.h"
#include "tests/fake_device/streams.h"
#include "tests/support/small_net.h"
#include "tests/support/train_small_net.h"

namespace sherd::fake {
namespace {

// Refuses the first gather of a block.
class RefusesOneGather final : public CollectiveObserver {
 public:
  void started(const Collective& collective) override {
    if (collective.operation == Collective::Operation::Gather && collective.unit == "block1" &&
        !std::exchange(has_refused_, true)) {
      throw std::runtime_error("no gather this time");
    }
  }

 private:
  bool has_refused_ = false;
};

// The gather that failed has been given events which may be gone before the next one.
TEST(Gathers, ThatFailLeaveNoEventToTheNext) {
  set_seed(1);
  run_ranks_on_devices(2, [](World world) {
    const at::Tensor x = test::make_example(0).x.to(world.device());
    auto expected = fully_shard(test::make_net(), Mesh::shard(world));
    world.set_observer(std::make_shared<RefusesOneGather>());
    auto model = fully_shard(test::make_net(), Mesh::shard(world));
    const StreamsEndFirst streams_end_first(world);
    EXPECT_THROW(static_cast<void>(model(x)), std::runtime_error);
    const at::Tensor output = model(x);
    EXPECT_TRUE(at::equal(output.cpu(), expected(x).cpu()));
  });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

// Which threads wait for readers of shards.
class ThreadsOfUpdates final : public CollectiveObserver {
 public:
  void started(const Collective& collective) override {
    const std::lock_guard lock(mutex_);
    if (collective.operation == Collective::Operation::Update) {
      threads_.push_back(std::this_thread::get_id());
    }
  }
  [[nodiscard]] auto count(std::thread::id thread) {
    const std::lock_guard lock(mutex_);
    return std::count(threads_.begin(), threads_.end(), thread);
  }

 private:
  std::mutex mutex_;
  std::vector<std::thread::id> threads_;
};

// As autograd's thread of a device does: it may let go of a graph last.
TEST(UpdateWindowOnADevice, IsNotOpenedByAThreadThatFreesAGraph) {
  set_seed(1);
  run_ranks_on_devices(2, [](World world) {
    const auto threads = std::make_shared<ThreadsOfUpdates>();
    world.set_observer(threads);
    ShardOptions options;
    options.precision.param_dtype = at::kBFloat16;
    auto model = fully_shard(test::make_net(), Mesh::shard(world), options);
    auto fresh = fully_shard(test::make_net(), Mesh::shard(world), options);
    const StreamsEndFirst streams_end_first(world);
    torch::optim::SGD optimizer(optim_parameters(model).values(), 0.5);
    const at::Tensor x = test::make_example(0).x.to(world.device());
    const auto free_aside = [&](at::Tensor& loss) {
      return std::thread([&loss, &world] {
        set_device(static_cast<c10::DeviceIndex>(world.rank()));
        loss.reset();
      });
    };
    model(x).sum().backward();
    at::Tensor loss = model(x).sum();
    std::thread other = free_aside(loss);
    const std::thread::id id = other.get_id();
    other.join();
    EXPECT_EQ(threads->count(id), 0);
    const auto before = threads->count(std::this_thread::get_id());
    optimizer.step();
    const at::Tensor output = model(x);
    EXPECT_GT(threads->count(std::this_thread::get_id()), before);
    load_full_state_dict(fresh, full_state_dict(model));
    EXPECT_TRUE(at::equal(output.cpu(), fresh(x).cpu()));  // it has seen the step

    loss = model(x).sum();
    other = free_aside(loss);
    static_cast<void>(model(x));  // meanwhile
    other.join();
  });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

constexpr int kRanks = 3;
constexpr int64_t kBlockNumel = 64;
constexpr int64_t kRootNumel = 160;  // two parts and a half

// Whole gradients of a rank for the root.
at::Tensor gradients_of(int rank, c10::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank));
  return at::randn({kRanks * kRootNumel}, generator).to(dtype);
}

struct Reduced {
  at::Tensor sum;         // on the host
  int64_t most_received;  // as planned
  int64_t received;       // as held
};

// With a root that is larger than the only block.
std::unique_ptr<Communicator> communicator_of_a_large_root(
    World& world, c10::ScalarType dtype, const std::shared_ptr<MemoryLedger>& ledger) {
  auto communicator = world.make_communicator({0, 1, kRanks});
  const SegmentSpec root{
      .name = "root", .shard_numel = kRootNumel, .dtype = dtype, .is_root = true};
  const SegmentSpec block{.name = "block", .shard_numel = kBlockNumel, .dtype = dtype};
  communicator->attach({root, block}, world.device(), ledger);
  return communicator;
}

Reduced reduce_root(World& world, c10::ScalarType dtype) {
  const auto ledger = std::make_shared<MemoryLedger>();
  const auto communicator = communicator_of_a_large_root(world, dtype, ledger);
  const at::Tensor sum =
      at::empty({kRootNumel}, at::TensorOptions(at::kFloat).device(world.device()));
  const Communicator::Reduction target{.shard = sum.data_ptr()};
  void* const buffer = communicator->acquire_reduce_buffer(0, target);
  at::Tensor gradients = detail::flat_tensor(buffer, kRanks * kRootNumel, dtype, world.device());
  gradients.copy_(gradients_of(world.rank(), dtype));
  communicator->reduce(0, target);
  communicator->finish_reductions();
  Reduced reduced{sum.cpu(), communicator->most_received_bytes(),
                  ledger->bytes(MemoryKind::ReceiveBuffer)};
  finish(world.device().index());
  return reduced;
}

at::Tensor expected_sum(int rank, c10::ScalarType dtype) {
  at::Tensor sum;
  for (int peer = 0; peer < kRanks; ++peer) {
    const at::Tensor shard =
        gradients_of(peer, dtype).narrow(0, rank * kRootNumel, kRootNumel).to(at::kFloat);
    sum = sum.defined() ? sum + shard : shard;
  }
  return sum;
}

// The planned bytes are of fp32, in which accumulated gradients travel: of the root and the block.
TEST(Reductions, OfALargeRootReceiveItInPartsOfABlock) {
  for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    run_ranks_on_devices(kRanks, [&](World world) {
      const Reduced reduced = reduce_root(world, dtype);
      EXPECT_TRUE(at::equal(reduced.sum, expected_sum(world.rank(), dtype)));
      EXPECT_EQ(reduced.most_received, 2 * kRanks * kBlockNumel * 4);
      EXPECT_EQ(reduced.received,
                kRanks * kBlockNumel * static_cast<int64_t>(c10::elementSize(dtype)));
      World planned = World::fake({.size = kRanks, .local_size = kRanks, .device = c10::kCUDA});
      EXPECT_EQ(communicator_of_a_large_root(planned, dtype, std::make_shared<MemoryLedger>())
                    ->most_received_bytes(),
                reduced.most_received);
    });
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

// NCCL's own sum is given fp32, part by part; where it sums what lies there, it gives one shard.
TEST(Reductions, OfALargeRootByNcclWidenItInPartsOfABlock) {
  const auto check = [](World world, c10::ScalarType dtype, int64_t received) {
    const Reduced reduced = reduce_root(world, dtype);
    EXPECT_TRUE(at::allclose(reduced.sum, expected_sum(world.rank(), dtype), 1e-5, 1e-5));
    EXPECT_EQ(reduced.received, received);
  };
  run_ranks_on_devices(
      kRanks, [&](const World& world) { check(world, at::kBFloat16, kRanks * kBlockNumel * 4); },
      ReduceScatter::Native);
  run_ranks_on_devices(
      kRanks, [&](const World& world) { check(world, at::kFloat, kRootNumel * 4); },
      ReduceScatter::Native);
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

// Two blocks of three belong to the root.
ShardOptions with_a_large_root() {
  return {.units = unit_policy::named([](const std::string& name) { return name == "block1"; })};
}

// Of memory, however micro-batches accumulate; their sums are freed with the last.
TEST(Reductions, OfALargeRootStayWithinThePlan) {
  for (const bool sync_each : {true, false}) {
    run_ranks_on_devices(2, [&](const World& world) {
      auto model = fully_shard(test::make_net(), Mesh::shard(world), with_a_large_root());
      const StreamsEndFirst streams_end_first(world);
      AdamW optimizer(model);
      const int64_t planned =
          model.planned_peak_bytes({.count = 2, .requires_gradient_sync = sync_each});
      const at::Tensor x = test::make_example(0).x.to(world.device());
      for (int step = 0; step < 2; ++step) {
        model.set_requires_gradient_sync(sync_each);
        model(x).sum().backward();
        EXPECT_EQ(model.memory().bytes(MemoryKind::UnshardedGradient) > 0, !sync_each);
        model.set_requires_gradient_sync(true);
        model(x).sum().backward();
        EXPECT_EQ(model.memory().bytes(MemoryKind::UnshardedGradient), 0);
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_LE(model.memory().peak_bytes(), planned) << sync_each;
    });
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

TEST(Reductions, OfALargeRootTrainAsOneRank) {
  test::SmallRun run;
  run.options = with_a_large_root();
  test::SmallRun alone = run;
  alone.micro_batches = 2;
  const auto trained = [](const World& world, const test::SmallRun& of) {
    test::SmallOutcome outcome = test::train_small_net(world, of);
    for (auto& [name, shard] : outcome.shards) {
      shard.value = shard.value.cpu();
    }
    return outcome;
  };
  test::SmallOutcome one;
  run_ranks_on_devices(1, [&](const World& world) { one = trained(world, alone); });
  for (const uint64_t seed : {1, 2, 3}) {
    set_seed(seed);
    run_ranks_on_devices(
        2, [&](const World& world) { test::check_equal_bits(one, trained(world, run)); });
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

}  // namespace
}  // namespace sherd::fake
