// Whole parameters for a look: what they hold, that they are sharded again afterwards, and that
// nothing of a step is disturbed.

#include <stdexcept>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "sherd/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/whole_state.h"

namespace sherd::test {
namespace {

ShardOptions options_of(bool bfloat16, Strategy strategy = Strategy::FullShard) {
  ShardOptions options{.strategy = strategy};
  if (bfloat16) {
    options.precision.param_dtype = at::kBFloat16;
  }
  return options;
}

// What a parameter lies on: memory that must not be touched, or values.
const void* place_of(const at::Tensor& parameter) {
  return parameter.storage().unsafeGetStorageImpl();
}

std::vector<const void*> addresses(const Net& net) {
  std::vector<const void*> found;
  for (const at::Tensor& parameter : net->parameters()) {
    found.push_back(place_of(parameter));
  }
  return found;
}

void check_whole_inside(const World& world) {
  const Net plain = make_net();
  for (const bool bfloat16 : {false, true}) {
    Net net = make_net();
    auto model = fully_shard(net, Mesh::shard(world), options_of(bfloat16));
    const auto sharded = addresses(net);
    bool called = false;
    with_full_parameters(model, "", [&] {
      called = true;
      for (const auto& item : plain->named_parameters()) {
        const at::Tensor expected = item.value().to(bfloat16 ? at::kBFloat16 : at::kFloat);
        TORCH_CHECK(at::equal(net->named_parameters()[item.key()], expected), item.key());
      }
      TORCH_CHECK(at::equal(net->head->weight, net->named_parameters()["head.weight"]), "member");
      TORCH_CHECK(!net->head->weight.sum().requires_grad(), "gradient mode is on");
    });
    TORCH_CHECK(called && addresses(net) == sharded, "parameters are not sharded again");
    TORCH_CHECK(at::GradMode::is_enabled(), "gradient mode is off");
  }
}

TEST(FullParameters, AreWholeInsideAndShardedAfterwards) {
  for (const int ranks : {1, 2, 3, 4}) {
    EXPECT_NO_THROW(run_ranks(ranks, check_whole_inside)) << ranks << " ranks";
  }
}

TEST(FullParameters, AreWholeInProcesses) {
  EXPECT_EQ(run_processes(3, check_whole_inside), (std::vector<int>{0, 0, 0}));
}

TEST(FullParameters, AreThoseOfTheNamedUnitAndUnitsInside) {
  run_ranks(2, [](World world) {
    auto net = seeded(3, [] { return NestedNet(); });
    const auto plain = seeded(3, [] { return NestedNet(); });
    auto model = fully_shard(net, Mesh::shard(world));
    const auto gathered = [&](const std::string& unit) {
      const auto parameters = net->named_parameters();
      std::map<std::string, const void*> sharded;
      for (const auto& item : parameters) {
        sharded[item.key()] = place_of(item.value());
      }
      std::string names;
      with_full_parameters(model, unit, [&] {
        for (const auto& item : parameters) {
          if (place_of(item.value()) != sharded[item.key()]) {
            EXPECT_TRUE(at::equal(item.value(), plain->named_parameters()[item.key()]));
            names += item.key().ends_with("weight") ? item.key() + " " : "";
          }
        }
      });
      return names;
    };
    EXPECT_EQ(gathered("root"), "head.weight ");
    EXPECT_EQ(gathered("a.inner"), "a.inner.linear.weight ");
    EXPECT_EQ(gathered("b"),
              "b.before.weight b.inner.linear.weight b.other.linear.weight b.after.weight ");
  });
}

// Inside, one element of each parameter is changed.
template <class Model>
void change(Model& model, Net& net, bool writeback) {
  with_full_parameters(model, "",
                       [&] {
                         for (const at::Tensor& parameter : net->parameters()) {
                           parameter.view({-1})[-1] = 3.14159;
                         }
                       },
                       {.writeback = writeback});
}

void check_writeback(const World& world) {
  for (const bool bfloat16 : {false, true}) {
    WholeState expected = states_of(*make_net());
    const double written = bfloat16 ? 3.140625 : 3.14159;  // rounded to what was shown
    Net net = make_net();
    auto model = fully_shard(net, Mesh::shard(world), options_of(bfloat16));
    change(model, net, false);
    check_same_bits(model, expected);  // forgotten
    const at::Tensor before = model(make_example(1).x);
    change(model, net, true);
    for (auto& [name, whole] : expected) {
      whole[-1] = written;
    }
    check_same_bits(model, expected);  // the other elements of bf16 models are not rounded
    Net changed = make_net();
    {
      const at::NoGradGuard no_grad;
      for (const auto& item : changed->named_parameters()) {
        item.value().copy_(expected.at(item.key()).view(item.value().sizes()));
      }
    }
    auto reference = fully_shard(changed, Mesh::shard(World::alone()), options_of(bfloat16));
    const at::Tensor after = model(make_example(1).x);
    TORCH_CHECK(at::equal(after, reference(make_example(1).x)), "what was written is not used");
    TORCH_CHECK(!at::equal(after, before), "nothing was written");
  }
}

TEST(FullParameters, AreWrittenBackWhereTheyChangedIfAskedFor) {
  for (const int ranks : {1, 2, 3, 4}) {
    EXPECT_NO_THROW(run_ranks(ranks, check_writeback)) << ranks << " ranks";
  }
  EXPECT_EQ(run_processes(2, check_writeback), (std::vector<int>{0, 0}));
}

TEST(FullParameters, OfFrozenParametersAreWrittenBackToo) {
  run_ranks(2, [](World world) {
    Net net = make_net();
    net->head->weight.requires_grad_(false);
    auto model = fully_shard(net, Mesh::shard(world), options_of(true));
    with_full_parameters(model, "root", [&] { net->head->weight.fill_(2); }, {.writeback = true});
    const StateDict dict = full_state_dict(model, {.rank0_only = false});
    EXPECT_TRUE(at::equal(dict["head.weight"], at::full({3, 13}, 2.0)));
  });
}

TEST(FullParameters, AreShardedAgainAfterAnException) {
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [](World world) {
      Net net = make_net();
      auto model = fully_shard(net, Mesh::shard(world));
      const auto sharded = addresses(net);
      const WholeState expected = states_of(*make_net());
      const auto failing = [&](bool on_all) {
        with_full_parameters(model, "",
                             [&] {
                               net->head->weight.fill_(9);
                               if (on_all || world.rank() == world.size() - 1) {
                                 throw std::out_of_range("not my day");
                               }
                             },
                             {.writeback = true});
      };
      EXPECT_THROW(failing(true), std::out_of_range);
      EXPECT_EQ(addresses(net), sharded);
      if (world.rank() == world.size() - 1) {
        EXPECT_THROW(failing(false), std::out_of_range);
      } else {
        expect_error([&] { failing(false); }, ExitCode::Internal,
                     {"[with_full_parameters] failed, rank 2: not my day"});
      }
      EXPECT_EQ(addresses(net), sharded);
      EXPECT_TRUE(at::GradMode::is_enabled());
      check_same_bits(model, expected);  // and nothing was written back
      EXPECT_TRUE(at::equal(model(make_example(1).x), make_net()->forward(make_example(1).x)));
    });
  }
}

TEST(FullParameters, InsideAStepAreRefused) {
  auto model = fully_shard(make_net(), Mesh::shard(World::alone()));
  const auto look = [&] { with_full_parameters(model, "", [] {}); };
  const auto inside = [&](NetImpl& net, const at::Tensor& x) {
    look();
    return net.input(x);
  };
  expect_error([&] { model.run(inside, make_example(1).x); }, ExitCode::Usage,
               {"[with_full_parameters] was called inside the forward of unit 'root': call it "
                "between steps."});
  at::Tensor output = model(make_example(1).x);
  output.register_hook([&](const at::Tensor&) { look(); });
  expect_error([&] { output.sum().backward(); }, ExitCode::Usage,
               {"[with_full_parameters] was called inside a backward: call it between steps."});
  EXPECT_NO_THROW(look());  // also after a backward that an exception has ended
}

TEST(FullParameters, DoNotLetAStepInside) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    AdamW optimizer(model);
    model(make_example(1).x).sum().backward();
    const auto refused = [&](const std::function<void()>& act, const std::string& what) {
      with_full_parameters(model, "", [&] { expect_error(act, ExitCode::Usage, {what}); });
    };
    refused([&] { model(make_example(1).x); },
            "[with_full_parameters] unit 'root' was called inside it, where parameters may only be "
            "read and written: do it afterwards.");
    refused(
        [&] {
          model.module()->blocks[1](at::ones({3, 13}));
        },
        "[with_full_parameters] unit 'block1' was called inside it");
    refused([&] { optimizer.step(); },
            "[with_full_parameters] shards were to be updated or read inside it");
    refused([&] { model.publish(); },
            "[with_full_parameters] shards were to be updated or read inside it");
    refused([&] { with_full_parameters(model, "", [] {}); },
            "[with_full_parameters] was called inside with_full_parameters: call it after that.");
    EXPECT_NO_THROW(optimizer.step());
  });
}

TEST(FullParameters, NamesTheUnitsThereAre) {
  auto model = fully_shard(make_net(1), Mesh::shard(World::alone()));
  expect_error([&] { with_full_parameters(model, "block7", [] {}); }, ExitCode::Usage,
               {"[with_full_parameters] there is no unit 'block7'. The units are 'root', "
                "'block0'; \"\" is all of them."});
  auto unfilled = fully_shard(on_meta([] { return Net(); }), Mesh::shard(World::alone()));
  expect_error([&] { with_full_parameters(unfilled, "", [] {}); }, ExitCode::Usage,
               {"[with_full_parameters] parameter 'input.weight' was built on the meta device"});
}

TEST(FullParameters, BetweenForwardAndBackwardDisturbNothing) {
  for (const Strategy strategy : {Strategy::FullShard, Strategy::ShardGradOp}) {
    run_ranks(3, [&](World world) {
      const auto train = [&](bool look) {
        auto model = fully_shard(make_net(), Mesh::shard(world), options_of(true, strategy));
        AdamW optimizer(model, {.lr = 1e-2});
        int64_t held = 0;
        for (int step = 0; step < 4; ++step) {
          const Example example = make_example(step);
          const at::Tensor loss = sum_of_errors(model(example.x), example.y);
          if (look) {
            with_full_parameters(model, step % 2 == 0 ? "" : "block1", [] {});
          }
          loss.backward();
          optimizer.step();
          optimizer.zero_grad();
          held = model.memory().total_bytes();
        }
        return std::make_pair(full_state_dict(model, {.rank0_only = false}), held);
      };
      const auto expected = train(false);
      const auto looked = train(true);
      for (const auto& item : expected.first) {
        EXPECT_TRUE(same_bits(looked.first[item.key()], item.value())) << item.key();
      }
      EXPECT_LE(looked.second, expected.second);
    });
  }
}

TEST(FullParameters, ShowWhatAnOptimizerOfLibTorchHasWritten) {
  run_ranks(2, [](World world) {
    Net net = make_net();
    auto model = fully_shard(net, Mesh::shard(world), options_of(true));
    const auto views = optim_parameters(model);
    for (const at::Tensor& view : views.values()) {
      view.data().fill_(0.5);  // as such an optimizer writes
    }
    with_full_parameters(model, "", [&] {
      EXPECT_TRUE(at::equal(net->head->weight, at::full({3, 13}, 0.5, at::kBFloat16)));
    });
  });
}

}  // namespace
}  // namespace sherd::test
