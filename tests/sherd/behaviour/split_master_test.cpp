// Masters in two halves train to the bits of whole ones, in two bytes less a parameter.

#include <gtest/gtest.h>

#include "sherd/checkpoint.h"
#include "sherd/state_dict.h"
#include "tests/support/bytes_per_element.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/train_small_net.h"

namespace sherd::test {
namespace {

ShardOptions options_of(Master master, Strategy strategy = Strategy::FullShard) {
  return {.strategy = strategy, .precision = {.param_dtype = at::kBFloat16, .master = master}};
}

TEST(SplitMaster, TrainsToTheBitsOfAWholeOne) {
  for (const int ranks : {1, 2, 4}) {
    for (const Strategy strategy : kStrategies) {
      run_ranks(ranks, [&](World world) {
        const SmallRun whole{.micro_batches = 2, .options = options_of(Master::Float32, strategy)};
        const SmallRun split{.micro_batches = 2, .options = options_of(Master::Split, strategy)};
        const SmallOutcome expected = train_small_net(world, whole);
        const SmallOutcome found = train_small_net(world, split);
        EXPECT_EQ(found.losses, expected.losses);
        for (const auto& [name, shard] : expected.shards) {
          EXPECT_TRUE(at::equal(shard.value, found.shards.at(name).value))
              << name_of(strategy) << ", " << name;
        }
      });
    }
  }
}

TEST(SplitMaster, TakesTwoBytesAParameterBesideWhatTravels) {
  run_ranks(2, [](World world) {
    const auto bytes = [&](Master master) {
      auto model = fully_shard(make_net(), Mesh::shard(world), options_of(master));
      return model.memory().bytes(MemoryKind::MasterShard);
    };
    EXPECT_GT(bytes(Master::Split), 0);
    EXPECT_EQ(2 * bytes(Master::Split), bytes(Master::Float32));
  });
}

TEST(SplitMaster, AndNarrowMomentsTakeTheBytesThatTheGuideSays) {
  run_ranks(2, [](World world) {
    const auto bytes = [&](Master master, c10::ScalarType moments) {
      return bytes_per_element(world, options_of(master), moments);
    };
    EXPECT_EQ(bytes(Master::Float32, at::kFloat), 18);
    EXPECT_EQ(bytes(Master::Split, at::kFloat), 16);
    EXPECT_EQ(bytes(Master::Float32, at::kBFloat16), 14);
    EXPECT_EQ(bytes(Master::Split, at::kBFloat16), 12);
  });
}

// One training step from a checkpoint, in the other form.
TEST(SplitMaster, GoesOnFromCheckpointsOfWholeOnesAndBack) {
  const TempFolder folder;
  for (const Master saved : {Master::Float32, Master::Split}) {
    const std::string path =
        (folder.path() / (saved == Master::Split ? "split" : "whole")).string();
    run_ranks(2, [&](World world) {
      const auto step = [](auto& model, AdamW& optimizer, int index) {
        const Example example = make_example(index);
        sum_of_errors(model(example.x), example.y).backward();
        optimizer.step();
        optimizer.zero_grad();
      };
      const auto values = [](const auto& model) {
        std::vector<at::Tensor> all;
        for (const ParameterShard& shard : model.parameter_shards()) {
          all.push_back(shard.value.clone());
        }
        return all;
      };
      auto model = fully_shard(make_net(), Mesh::shard(world), options_of(saved));
      AdamW optimizer(model, {.lr = 1e-2});
      step(model, optimizer, 0);
      save_checkpoint(model, optimizer, path, "");
      step(model, optimizer, 1);
      const auto expected = values(model);
      for (const Master resumed : {Master::Float32, Master::Split}) {
        auto other = fully_shard(make_net(), Mesh::shard(world), options_of(resumed));
        AdamW its(other, {.lr = 1e-2});
        load_checkpoint(other, its, path);
        step(other, its, 1);
        const auto found = values(other);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(at::equal(expected[i], found[i])) << i;
        }
      }
    });
  }
}

// What is filled, shown whole, written and loaded is what whole masters have.
TEST(SplitMaster, IsFilledShownAndWrittenAsAWholeOne) {
  run_ranks(2, [](World world) {
    std::vector<std::map<std::string, at::Tensor>> outcomes;
    for (const Master master : {Master::Float32, Master::Split}) {
      Net net = make_net();
      auto model = fully_shard(net, Mesh::shard(world), options_of(master));
      int number = 0;
      initialize(model, 5, [&](ParameterInit& parameter) {
        ++number % 2 == 0 ? parameter.fill_constant(1.0 / 3.0) : parameter.fill_normal(0, 0.1);
      });
      with_full_parameters(model, "", [&] { net->parameters().front().flatten()[0] = 7.5; },
                           {.writeback = true});
      auto& outcome = outcomes.emplace_back();
      const StateDict dict = full_state_dict(model, {.rank0_only = false});
      for (const auto& item : dict) {
        outcome[item.key()] = item.value();
      }
      load_full_state_dict(model, dict);
      for (const ParameterShard& shard : model.parameter_shards()) {
        outcome["loaded " + shard.name] = shard.value.clone();
      }
    }
    EXPECT_FALSE(outcomes[0].empty());
    for (const auto& [name, value] : outcomes[0]) {
      EXPECT_TRUE(at::equal(value, outcomes[1].at(name))) << name;
    }
  });
}

TEST(SplitMaster, RefusesWhatNeedsWholeOnes) {
  const Mesh mesh = Mesh::shard(World::alone());
  ShardOptions options = options_of(Master::Split);
  auto model = fully_shard(make_net(), mesh, options);
  expect_error([&] { static_cast<void>(optim_parameters(model)); }, ExitCode::Usage,
               {"[optim_parameters] unit '", "masters in the format Split",
                "use sherd::AdamW, or Master::Float32"});
  options.precision.full_precision_in_eval = true;
  expect_error([&] { fully_shard(make_net(), mesh, options); }, ExitCode::Usage,
               {"[fully_shard] Master::Split", "leave full_precision_in_eval"});
  options.precision = {.param_dtype = at::kHalf, .master = Master::Split};
  expect_error([&] { fully_shard(make_net(), mesh, options); }, ExitCode::Usage,
               {"instead of param_dtype Half choose BFloat16"});
}

}  // namespace
}  // namespace sherd::test
