#pragma once
// Training of the small model on any world, with an outcome that can be compared bit by bit.

#include <map>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/meshes.h"
#include "tests/support/small_net.h"

namespace sherd::test {

struct SmallRun {
  int micro_batches = 1;  ///< a rank and step; over all ranks they are numbered micro-batch first
  ShardOptions options;
  int steps = 4;
};

/// What one rank has in the end.
struct SmallOutcome {
  std::map<int, double> losses;  ///< by number of the example
  std::map<std::string, ParameterShard> shards;
};

inline SmallOutcome train_small_net(World world, const SmallRun& run) {
  auto model = fully_shard(make_net(), mesh_for(world, run.options.strategy), run.options);
  model.set_gradient_divide_factor(1.0);
  AdamW optimizer(model, {.lr = 1e-2});
  SmallOutcome outcome;
  const int total = world.size() * run.micro_batches;
  for (int step = 0; step < run.steps; ++step) {
    for (int micro = 0; micro < run.micro_batches; ++micro) {
      const int index = step * total + micro * world.size() + world.rank();
      const Example example = make_example(index);
      const at::Tensor loss = sum_of_errors(model(example.x), example.y.to(world.device()));
      loss.backward();
      outcome.losses[index] = loss.item<double>();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  for (ParameterShard& shard : model.parameter_shards()) {
    shard.value = shard.value.clone();
    outcome.shards.emplace(shard.name, std::move(shard));
  }
  return outcome;
}

/// Throws, naming what differs, unless this rank's part equals that of a world of one bit by bit.
inline void check_equal_bits(const SmallOutcome& one, const SmallOutcome& part) {
  for (const auto& [index, loss] : part.losses) {
    TORCH_CHECK(one.losses.at(index) == loss, "loss ", index, ": ", one.losses.at(index), " and ",
                loss);
  }
  TORCH_CHECK(one.shards.size() == part.shards.size(), "another number of parameters");
  for (const auto& [name, shard] : part.shards) {
    const at::Tensor whole = one.shards.at(name).value;
    TORCH_CHECK(at::equal(whole.narrow(0, shard.begin, shard.end - shard.begin), shard.value), name,
                " differs");
  }
}

}  // namespace sherd::test
