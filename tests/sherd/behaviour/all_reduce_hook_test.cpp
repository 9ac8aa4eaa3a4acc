// A sum of gradients over ranks that the World does not have.

#include <cstring>
#include <limits>
#include <stdexcept>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/support/meshes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

using Hook = ShardedModule::AllReduceHook;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void run_hooked_batch(Sharded<Net>& model, int number) {
  const Example example = make_example(number);
  sum_of_errors(model(example.x), example.y).backward();
}

std::vector<at::Tensor> hooked_gradients(const ShardedModule& model) {
  std::vector<at::Tensor> found;
  for (const ParameterShard& shard : model.parameter_shards()) {
    found.push_back(shard.gradient.clone());
  }
  return found;
}

std::vector<at::Tensor> hooked_values(const ShardedModule& model) {
  std::vector<at::Tensor> found;
  for (const ParameterShard& shard : model.parameter_shards()) {
    found.push_back(shard.value.clone());
  }
  return found;
}

void expect_same_tensors(const std::vector<at::Tensor>& expected,
                         const std::vector<at::Tensor>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(expected[i], actual[i])) << "parameter " << i;
  }
}

// Adds the shard of the other row, which only `all` connects this one with.
Hook sum_over_rows(World& all, int rows) {
  return [&all, rows](const std::string& unit, const at::Tensor& shard) {
    std::string mine(static_cast<size_t>(shard.nbytes()), '\0');
    std::memcpy(mine.data(), shard.const_data_ptr(), mine.size());
    const std::vector<std::string> by_rank = all.all_gather(mine);
    const std::string& other = by_rank[static_cast<size_t>((all.rank() + rows) % all.size())];
    ASSERT_EQ(other.size(), mine.size()) << unit;
    at::Tensor theirs = at::empty_like(shard);
    std::memcpy(theirs.mutable_data_ptr(), other.data(), other.size());
    at::Tensor(shard).add_(theirs);
  };
}

struct FirstMicroBatch {
  bool sync = true;        // of the first of two micro-batches
  bool all_reduce = true;  // of the same
};

// Two micro-batches, the second of which is summed over all ranks.
void run_hooked_step(Sharded<Net>& model, const FirstMicroBatch& how, int rank) {
  if (!how.sync || !how.all_reduce) {
    model.set_requires_gradient_sync(how.sync);
    model.set_requires_all_reduce(how.all_reduce);
    run_hooked_batch(model, rank);
    model.set_requires_gradient_sync(true);
    model.set_requires_all_reduce(true);
  }
  run_hooked_batch(model, 10 + rank);
}

// Two worlds of two ranks, joined by hooks, have the bits of two replicas in a world of four.
TEST(AllReduceHook, OverTwoWorldsEqualsReplicasInOne) {
  for (const FirstMicroBatch how :
       {FirstMicroBatch{}, FirstMicroBatch{.all_reduce = false}, FirstMicroBatch{.sync = false}}) {
    std::vector<std::vector<World>> rows = {World::in_process(2), World::in_process(2)};
    run_ranks(4, [&](World all) {
      auto whole =
          fully_shard(make_net(), Mesh::hybrid(all, 2), {.strategy = Strategy::HybridShard});
      World row =
          std::move(rows[static_cast<size_t>(all.rank() / 2)][static_cast<size_t>(all.rank() % 2)]);
      auto half = fully_shard(make_net(), Mesh::shard(row));
      half.set_gradient_divide_factor(4);
      half.set_all_reduce_hook(sum_over_rows(all, 2));
      run_hooked_step(whole, how, all.rank());
      run_hooked_step(half, how, all.rank());
      EXPECT_NEAR(clip_grad_norm(whole, kInfinity).item<double>(),
                  clip_grad_norm(half, kInfinity).item<double>(), 1e-5);
      AdamW(whole, {.lr = 1e-2}).step();
      AdamW(half, {.lr = 1e-2}).step();
      const FullStateOptions on_all = {.rank0_only = false};
      const StateDict expected = full_state_dict(whole, on_all);
      for (const auto& item : full_state_dict(half, on_all)) {
        EXPECT_TRUE(at::equal(expected[item.key()], item.value())) << item.key();
      }
    });
  }
}

TEST(AllReduceHook, IsCalledOnceAStepForTheUnitsItIsFor) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      auto model = fully_shard(make_net(), mesh_for(world, strategy), {.strategy = strategy});
      std::vector<std::string> calls;
      const Hook hook = [&](const std::string& unit, const at::Tensor& /*shard*/) {
        calls.push_back(unit);
      };
      model.set_all_reduce_hook(hook, [](const std::string& unit) { return unit != "block1"; });
      run_hooked_step(model, {.all_reduce = false}, world.rank());
      EXPECT_EQ(calls, (std::vector<std::string>{"root", "block0", "block2"})) << name_of(strategy);
      model.set_all_reduce_hook({});
      run_hooked_step(model, {}, world.rank());
      EXPECT_EQ(calls.size(), 3U) << name_of(strategy);
    });
  }
}

// What the hook writes is what an optimizer in backward reads.
TEST(AllReduceHook, ComesBeforeAnOptimizerInBackward) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    AdamW optimizer(model, {.lr = 1e-2, .weight_decay = 0}, {}, {.in_backward = true});
    const auto before = hooked_values(model);
    model.set_all_reduce_hook(
        [](const std::string& /*unit*/, const at::Tensor& shard) { at::Tensor(shard).zero_(); });
    run_hooked_batch(model, world.rank());
    optimizer.step();
    expect_same_tensors(before, hooked_values(model));
  });
}

// What it throws ends the backward, unchanged; the next one starts clean.
TEST(AllReduceHook, MayThrow) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    model.set_all_reduce_hook([](const std::string& unit, const at::Tensor& /*shard*/) {
      throw std::invalid_argument("no further ranks for " + unit);
    });
    EXPECT_THROW(run_hooked_batch(model, world.rank()), std::invalid_argument);
    model.set_all_reduce_hook({});
    run_hooked_batch(model, world.rank());
    auto fresh = fully_shard(make_net(), Mesh::shard(world));
    run_hooked_batch(fresh, world.rank());
    expect_same_tensors(hooked_gradients(fresh), hooked_gradients(model));
  });
}

}  // namespace
}  // namespace sherd::test
