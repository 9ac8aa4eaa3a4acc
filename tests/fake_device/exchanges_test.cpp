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

}  // namespace
}  // namespace sherd::fake
