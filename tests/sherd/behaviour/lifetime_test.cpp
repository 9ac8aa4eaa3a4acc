// What outlives what: graphs the model they came from, and exchanges under way the memory they
// write.

#include <cstring>
#include <map>

#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include "sherd/error.h"
#include "sherd/fully_shard.h"
#include "tests/support/decorated_world.h"
#include "tests/support/meshes.h"
#include "tests/support/odd_nets.h"
#include "tests/support/ranks.h"

namespace sherd::test {
namespace {

/// Computes with members that are gone when the module is, and tells when that is.
struct MortalImpl : torch::nn::Module {
  MortalImpl() : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  ~MortalImpl() override { factor = -1; }
  at::Tensor forward(const at::Tensor& x) {
    TORCH_CHECK(factor == 2, "the module is gone");
    return at::tanh(linear(x)) * factor;
  }
  double factor = 2;
  torch::nn::Linear linear;
};
TORCH_MODULE(Mortal);
struct MortalNetImpl : torch::nn::Module {
  MortalNetImpl()
      : first(register_module("first", Unit<Mortal>())),
        second(register_module("second", Unit<Mortal>())) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  Unit<Mortal> first;
  Unit<Mortal> second;
};
TORCH_MODULE(MortalNet);

TEST(Lifetime, ABackwardAfterTheModelWasGivenUp) {
  for (const bool checkpointed : {false, true}) {
    run_ranks(2, [&](World world) {
      const at::Tensor x = odd_input(world.rank()).set_requires_grad(true);
      const at::Tensor plain_x = odd_input(world.rank()).set_requires_grad(true);
      loss_of(builder<MortalNet>()()(plain_x)).backward();
      at::Tensor loss;
      {
        auto model = fully_shard(
            builder<MortalNet>()(), Mesh::shard(world),
            {.units = unit_policy::every_unit({.checkpoint_activations = checkpointed})});
        loss = loss_of(model(x));
      }
      loss.backward();
      EXPECT_TRUE(at::allclose(x.grad(), plain_x.grad(), 1e-4, 1e-6));
    });
  }
}

/// Gathers like a network: what was asked for is written when it is waited for, or, where nobody
/// could wait, when the communicator goes.
class LateGather final : public DecoratedCommunicator {
 public:
  LateGather(std::unique_ptr<Communicator> inner, std::shared_ptr<bool> lost)
      : DecoratedCommunicator(std::move(inner)), lost_(std::move(lost)) {}
  ~LateGather() override {
    for (const auto& [segment, slot] : slots_) {
      std::memset(slot, 0, bytes_.at(segment));
    }
  }
  LateGather(const LateGather&) = delete;
  LateGather& operator=(const LateGather&) = delete;
  void attach(std::vector<SegmentSpec> segments, c10::Device device,
              std::shared_ptr<MemoryLedger> ledger) override {
    for (size_t i = 0; i < segments.size(); ++i) {
      bytes_[static_cast<int>(i)] = static_cast<size_t>(segments[i].shard_numel) *
                                    static_cast<size_t>(world_size()) *
                                    c10::elementSize(segments[i].dtype);
    }
    DecoratedCommunicator::attach(std::move(segments), device, std::move(ledger));
  }
  void* gather(Segment segment, void* slot, const GatherEvents& after) override {
    slots_[segment] = slot;
    return DecoratedCommunicator::gather(segment, slot, after);
  }
  void wait_gather(Segment segment) override {
    if (*lost_) {
      throw Error(ExitCode::PeerLost, "nobody there");
    }
    slots_.erase(segment);
    DecoratedCommunicator::wait_gather(segment);
  }

 private:
  std::shared_ptr<bool> lost_;
  std::map<Segment, void*> slots_;
  std::map<Segment, size_t> bytes_;
};

// Exchanges that could not be waited for write into memory that is still there.
TEST(Lifetime, ExchangesEndBeforeTheMemoryTheyWriteInto) {
  run_ranks(2, [](World world) {
    const auto lost = std::make_shared<bool>(false);
    const World late = decorated_world(world, [&](std::unique_ptr<Communicator> inner) {
      return std::make_unique<LateGather>(std::move(inner), lost);
    });
    auto model = fully_shard(builder<MortalNet>()(), Mesh::shard(late), {.prefetch_depth = 2});
    static_cast<void>(model(odd_input(1)));
    world.barrier();
    *lost = true;
    EXPECT_THROW(model(odd_input(1)), Error);
  });
}

}  // namespace
}  // namespace sherd::test
