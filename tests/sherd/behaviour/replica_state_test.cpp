// State dicts of models that are replicated as well as sharded: any strategy's state comes back
// under any other, values and moments bit by bit.

#include <mutex>

#include <gtest/gtest.h>

#include "sherd/state_dict.h"
#include "tests/support/meshes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/whole_state.h"

namespace sherd::test {
namespace {

constexpr int kRanks = 4;

struct TrainedState {
  StateDict values;
  OptimStateDict moments;
  std::vector<ParameterShard> pieces;  // of all ranks
};

void train(Sharded<Net>& model, AdamW& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    model(make_example(step * kRanks + model.world().rank()).x).square().sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

/// Runs a body on the ranks of a model of this strategy.
template <class Body>
void on_ranks(Strategy strategy, const Body& body) {
  run_ranks(kRanks, [&](World world) {
    ShardOptions options{.strategy = strategy};
    options.precision.param_dtype = at::kBFloat16;
    auto model = fully_shard(make_net(), mesh_for(world, strategy), options);
    AdamW optimizer(model, {.lr = 1e-2});
    body(model, optimizer);
  });
}

TrainedState trained(Strategy strategy) {
  TrainedState all;
  std::mutex mutex;
  on_ranks(strategy, [&](Sharded<Net>& model, AdamW& optimizer) {
    train(model, optimizer, 3);
    StateDict values = full_state_dict(model);
    OptimStateDict moments = full_optim_state_dict(model, optimizer);
    const std::lock_guard lock(mutex);
    if (model.world().rank() == 0) {
      all.values = std::move(values);
      all.moments = std::move(moments);
    }
    for (const auto& item : sharded_state_dict(model)) {
      all.pieces.push_back(item.value());
      all.pieces.back().value = item.value().value.clone();
    }
  });
  return all;
}

WholeState flat(const StateDict& values) {
  WholeState state;
  for (const auto& item : values) {
    state[item.key()] = item.value().reshape({-1});
  }
  return state;
}

void check_moments(Sharded<Net>& model, const AdamW& optimizer, const OptimStateDict& expected) {
  const OptimStateDict found = full_optim_state_dict(model, optimizer, /*rank0_only=*/false);
  TORCH_CHECK(found.size() == expected.size());
  for (const auto& item : expected) {
    TORCH_CHECK(same_bits(found[item.key()].exp_avg, item.value().exp_avg), item.key());
    TORCH_CHECK(same_bits(found[item.key()].exp_avg_sq, item.value().exp_avg_sq), item.key());
  }
}

TEST(ReplicaState, ComesBackUnderEveryOtherStrategy) {
  for (const Strategy from : kStrategies) {
    const TrainedState saved = trained(from);
    const WholeState whole = flat(saved.values);
    for (const Strategy to : kStrategies) {
      EXPECT_NO_THROW(on_ranks(
          to,
          [&](Sharded<Net>& model, AdamW& optimizer) {
            const bool first = model.world().rank() == 0;
            load_full_state_dict(model, first ? saved.values : StateDict());
            load_full_optim_state_dict(model, optimizer, first ? saved.moments : OptimStateDict());
            check_same_bits(model, whole);
            check_moments(model, optimizer, saved.moments);
            train(model, optimizer, 1);
            load_sharded_state_dict(model, first ? saved.pieces : std::vector<ParameterShard>());
            check_same_bits(model, whole);
          }))
          << name_of(from) << " to " << name_of(to);
    }
  }
}

TEST(ReplicaState, TrainingGoesOnWithTheSameBits) {
  for (const Strategy strategy : kStrategies) {
    const TrainedState saved = trained(strategy);
    StateDict expected;
    StateDict found;
    const auto keep = [](Sharded<Net>& model, StateDict& place) {
      StateDict mine = full_state_dict(model);
      if (model.world().rank() == 0) {
        place = std::move(mine);
      }
    };
    on_ranks(strategy, [&](Sharded<Net>& model, AdamW& optimizer) {
      train(model, optimizer, 3);
      train(model, optimizer, 2);
      keep(model, expected);
    });
    on_ranks(strategy, [&](Sharded<Net>& model, AdamW& optimizer) {
      const bool first = model.world().rank() == 0;
      load_full_state_dict(model, first ? saved.values : StateDict());
      load_full_optim_state_dict(model, optimizer, first ? saved.moments : OptimStateDict());
      train(model, optimizer, 2);
      keep(model, found);
    });
    for (const auto& item : expected) {
      EXPECT_TRUE(same_bits(item.value(), found[item.key()]))
          << name_of(strategy) << ", " << item.key();
    }
  }
}

}  // namespace
}  // namespace sherd::test
