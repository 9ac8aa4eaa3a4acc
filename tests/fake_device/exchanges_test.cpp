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

#include "base/movable_storage.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
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

}  // namespace
}  // namespace sherd::fake
