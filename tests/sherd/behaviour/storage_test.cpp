// A kind of storage from outside: the engine uses state only while it holds it.

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "step/step.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd {
namespace {

using detail::Access;
using detail::Part;
using detail::Storage;

// Keeps its elements in a block of its own. tensor() has them while somebody uses or holds it, and
// nothing but ones in all bits otherwise, which is NaN.
class PoisonedStorage final : public Storage {
 public:
  PoisonedStorage(int64_t numel, c10::ScalarType dtype) {
    tensor_ = at::empty({numel}, dtype);
    kept_.resize(tensor_.nbytes(), 0);
    poison();
  }

  [[nodiscard]] bool is_held() const override { return is_held_; }
  [[nodiscard]] void* address() const override { return tensor_.data_ptr(); }
  [[nodiscard]] std::shared_ptr<void> use(const at::Tensor&, bool writes) override {
    begin_use();
    return {this, [writes](PoisonedStorage* storage) { storage->end_use(writes); }};
  }
  void hold(Access access) override {
    if (!std::exchange(is_held_, true)) {
      begin_use();
      if (access == Access::Overwrite) {
        poison();
      }
    }
  }
  [[nodiscard]] const c10::Event* fetched() override {
    hold(Access::Read);
    return nullptr;
  }
  void write_back() override { end_hold(/*writes=*/true); }
  void drop() override { end_hold(/*writes=*/false); }
  void discard() override { drop(); }
  using Storage::write_back;

 private:
  void begin_use() {
    if (uses_++ == 0) {
      std::memcpy(tensor_.data_ptr(), kept_.data(), kept_.size());
    }
  }
  void end_hold(bool writes) {
    if (std::exchange(is_held_, false)) {
      end_use(writes);
    }
  }
  void end_use(bool writes) {
    if (writes) {
      std::memcpy(kept_.data(), tensor_.data_ptr(), kept_.size());
    }
    if (--uses_ == 0) {
      poison();
    }
  }
  void poison() { std::memset(tensor_.data_ptr(), 0xFF, kept_.size()); }

  std::vector<char> kept_;
  int uses_ = 0;
  bool is_held_ = false;
};

class PoisonedParts final : public detail::StorageFactory {
 public:
  explicit PoisonedParts(std::vector<Part> parts) : parts_(std::move(parts)) {}
  [[nodiscard]] std::unique_ptr<Storage> make(Part part, int64_t numel,
                                              c10::ScalarType dtype) const override {
    const bool is_mine = std::find(parts_.begin(), parts_.end(), part) != parts_.end();
    return is_mine ? std::make_unique<PoisonedStorage>(numel, dtype) : nullptr;
  }

 private:
  std::vector<Part> parts_;
};

// Parameters and moments after steps of two micro-batches, clipped, with an evaluation between.
std::vector<at::Tensor> trained(const World& world, const ShardOptions& options,
                                const detail::StorageFactory* factory) {
  test::Net net = test::make_net();
  const Mesh mesh = Mesh::shard(world);
  Sharded<test::Net> model(net, detail::shard_module(net.ptr(), mesh, options, factory));
  AdamW optimizer(model, {.lr = 1e-2});
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const test::Example example = test::make_example(4 * step + 2 * micro + world.rank());
      test::sum_of_errors(model(example.x), example.y).backward();
    }
    static_cast<void>(clip_grad_norm(model, 0.5));
    optimizer.step();
    optimizer.zero_grad();
    const at::NoGradGuard no_grad;
    static_cast<void>(model(test::make_example(99).x));
  }
  std::vector<at::Tensor> values;
  for (const auto& item : full_state_dict(model, {.rank0_only = false})) {
    values.push_back(item.value().clone());
  }
  for (const MomentShard& moment : optimizer.moments()) {
    values.insert(values.end(), {moment.exp_avg.clone(), moment.exp_avg_sq.clone()});
  }
  return values;
}

void expect_same_bits(const World& world, const std::vector<Part>& parts) {
  const PoisonedParts factory(parts);
  for (const auto& [dtype, master] :
       {std::tuple(at::kFloat, Master::Float32), std::tuple(at::kBFloat16, Master::Float32),
        std::tuple(at::kBFloat16, Master::Split)}) {
    const ShardOptions options{.precision = {.param_dtype = dtype, .master = master}};
    const auto expected = trained(world, options, nullptr);
    const auto found = trained(world, options, &factory);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], expected[i]))
          << i << ", " << c10::toString(dtype) << ", " << name_of(master);
    }
  }
}

TEST(StorageFromOutside, HoldsAllPartsToTheSameBits) {
  expect_same_bits(World::alone(), {Part::Optimizer, Part::Gradients, Part::Parameters});
  for (const Part part : {Part::Optimizer, Part::Gradients, Part::Parameters}) {
    expect_same_bits(World::alone(), {part});
  }
}

TEST(StorageFromOutside, HoldsStateOfSeveralRanks) {
  test::run_ranks(2, [](World world) {
    expect_same_bits(world, {Part::Optimizer, Part::Gradients});
  });
}

// What waits, copies or asks in a loop gets nothing to wait for: no event, and an empty function.
TEST(ResidentStorage, CostsNothing) {
  const at::Tensor memory = at::ones({8});
  detail::ResidentStorage storage(memory);
  EXPECT_FALSE(storage.usable());
  EXPECT_EQ(storage.use(memory, /*writes=*/true), nullptr);
  storage.prefetch();
  EXPECT_EQ(storage.fetched(), nullptr);
  for (const Access access : {Access::Read, Access::Write, Access::Overwrite}) {
    storage.hold(access);
    EXPECT_FALSE(storage.is_held());
    EXPECT_EQ(storage.tensor().data_ptr(), memory.data_ptr());
    storage.write_back();
  }
  EXPECT_EQ(storage.file(), nullptr);
  EXPECT_FALSE(storage.needs_place());
}

}  // namespace
}  // namespace sherd
