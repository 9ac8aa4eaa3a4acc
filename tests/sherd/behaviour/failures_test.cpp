// What goes wrong, and what is said: wrong use of the engine, exceptions in the middle of a step,
// ranks that die.

#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

struct OneParameterImpl : torch::nn::Module {
  explicit OneParameterImpl(const at::Tensor& value)
      : weight(register_parameter("weight", value, value.is_floating_point())) {}
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
TORCH_MODULE(OneParameter);

void expect_refused(const at::Tensor& value, const std::string& what) {
  expect_error([&] { fully_shard(OneParameter(value), alone()); }, ExitCode::Usage,
               {"[fully_shard] parameter 'weight' " + what});
}

TEST(FullyShard, RefusesParametersItCannotCut) {
  expect_refused(at::ones({}), "is a scalar, which cannot be sharded: give it shape [1].");
  expect_refused(at::ones({2, 3}).t(), "is not contiguous: register parameter.contiguous()");
  expect_refused(at::ones({2}, at::kBool), "is Bool; supported are Float and BFloat16, and ");
  expect_refused(at::ones({2}, at::kUInt16), "is UInt16; supported are Float and BFloat16, and ");
  expect_refused(at::ones({2}, at::kDouble), "is Double; supported are Float and BFloat16, and ");
  expect_refused(at::ones({0, 3}), "has no elements: leave it out of the model.");
}

TEST(FullyShard, RefusesOptionsItDoesNotHave) {
  const auto refused = [](const ShardOptions& options, const std::string& what) {
    expect_error([&] { fully_shard(make_net(), alone(), options); }, ExitCode::Usage, {what});
  };
  refused({.precision = {.param_dtype = at::kDouble}},
          "[fully_shard] param_dtype is Float, BFloat16 or Half, got Double.");
  refused({.precision = {.reduce_dtype = at::kHalf}},
          "[fully_shard] reduce_dtype is Float or BFloat16, got Half");
  refused({.strategy = Strategy::ShardGradOp, .reshard_after_forward_size = 1},
          "[fully_shard] reshard_after_forward_size 1 is for FullShard and HybridShard: the other "
          "strategies keep what they gather.");
  refused({.units = unit_policy::every_unit({.precision = Precision{.buffer_dtype = at::kHalf}})},
          "[fully_shard] buffer_dtype of unit 'block0' is not the model's: buffers are cast alike, "
          "set ShardOptions::precision.");
  refused({.prefetch_depth = 9}, "[fully_shard] prefetch_depth is 0 to 8, got 9.");
  refused({.prefetch_depth = -1}, "[fully_shard] prefetch_depth is 0 to 8, got -1.");
}

TEST(FullyShard, NamesTheRankThatHasAnotherModel) {
  run_ranks(3, [](World world) {
    const int64_t width = world.rank() == 2 ? 14 : 13;
    expect_error(
        [&] { fully_shard(make_net(3, width), Mesh::shard(world)); }, ExitCode::RanksDisagree,
        {"Rank 0 has parameter 'input.weight' of unit 'root': shape [13, 5], Float; rank 2 "
         "has parameter 'input.weight' of unit 'root': shape [14, 5], Float."});
  });
}

TEST(FullyShard, NamesTheRankThatHasAnotherBuffer) {
  run_ranks(2, [](World world) {
    auto net = make_net();
    net->register_buffer("positions", at::zeros({4 + world.rank()}));
    expect_error([&] { fully_shard(net, Mesh::shard(world)); }, ExitCode::RanksDisagree,
                 {"Rank 0 has buffer 'positions': shape [4], Float; rank 1 has buffer 'positions': "
                  "shape [5], Float."});
  });
}

// Rank 0 has no options, rank 1 these.
void expect_disagreement(const ShardOptions& options, const std::string& of_rank_0,
                         const std::string& of_rank_1) {
  run_ranks(2, [&](World world) {
    const ShardOptions mine = world.rank() == 0 ? ShardOptions() : options;
    expect_error([&] { fully_shard(make_net(), Mesh::shard(world), mine); },
                 ExitCode::RanksDisagree,
                 {"Rank 0 has " + of_rank_0 + "; rank 1 has " + of_rank_1 + "."});
  });
}

TEST(FullyShard, NamesTheRankThatHasOtherOptions) {
  expect_disagreement({.prefetch_depth = 0}, "prefetch_depth 1", "prefetch_depth 0");
  expect_disagreement({.strategy = Strategy::ShardGradOp}, "strategy FullShard",
                      "strategy ShardGradOp");
  expect_disagreement({.backward_prefetch = BackwardPrefetch::Post}, "backward_prefetch Pre",
                      "backward_prefetch Post");
  expect_disagreement({.reshard_after_forward_size = 2}, "reshard_after_forward_size 0",
                      "reshard_after_forward_size 2");
  expect_disagreement({.debug = true}, "debug 0", "debug 1");
  const std::string root = "unit 'root': reshard_after_forward 0, checkpoint_activations 0, ";
  const std::string own =
      "param_dtype own, master Float32, reduce_dtype Float, buffer_dtype own, output_dtype own, ";
  const std::string rest = "cast_forward_inputs 1, full_precision_in_eval 0";
  expect_disagreement({.precision = {.buffer_dtype = at::kHalf}}, root + own + rest,
                      root +
                          "param_dtype own, master Float32, reduce_dtype Float, buffer_dtype Half, "
                          "output_dtype own, " +
                          rest);
  expect_disagreement({.precision = {.output_dtype = at::kHalf}}, root + own + rest,
                      root +
                          "param_dtype own, master Float32, reduce_dtype Float, buffer_dtype own, "
                          "output_dtype Half, " +
                          rest);
  expect_disagreement({.precision = {.cast_forward_inputs = false}}, root + own + rest,
                      root + own + "cast_forward_inputs 0, full_precision_in_eval 0");
  const std::string block = "unit 'block0': reshard_after_forward 1, checkpoint_activations ";
  expect_disagreement(
      {.units = unit_policy::every_unit({.precision = Precision{.full_precision_in_eval = true}})},
      block + "0, " + own + rest,
      block + "0, " + own + "cast_forward_inputs 1, full_precision_in_eval 1");
  expect_disagreement({.units = unit_policy::every_unit({.checkpoint_activations = true})},
                      block + "0, " + own + rest, block + "1, " + own + rest);
}

TEST(FullyShard, RefusesASecondTime) {
  auto net = make_net();
  auto model = fully_shard(net, alone());
  expect_error([&] { fully_shard(net, alone()); }, ExitCode::Usage,
               {"[fully_shard] unit 'block0' is sharded already: call fully_shard once"});
  torch::nn::Linear linear(3, 4);
  auto sharded = fully_shard(linear, alone());
  expect_error(
      [&] { fully_shard(linear, alone()); }, ExitCode::Usage,
      {"[fully_shard] parameter 'weight' is sharded already", "use the handle it returns"});
}

TEST(Runtime, RefusesNumbersThatMakeNoSense) {
  auto model = fully_shard(make_net(), alone());
  for (const double factor : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_error([&] { model.set_gradient_divide_factor(factor); }, ExitCode::Usage,
                 {"[set_gradient_divide_factor] the factor must be above 0, got "});
    if (!(factor > 0)) {
      expect_error([&] { clip_grad_norm(model, factor); }, ExitCode::Usage,
                   {"[clip_grad_norm] max_norm must be above 0, got "});
      expect_error([&] { clip_grad_norm(model, 1.0, factor); }, ExitCode::Usage,
                   {"[clip_grad_norm] norm_type must be above 0, got "});
    }
  }
}

TEST(Meta, IsShardedWithoutMemoryAndFilledByParts) {
  run_ranks(3, [](World world) {
    const Net whole = make_net();
    auto net = on_meta([] { return Net(); });
    EXPECT_TRUE(net->head->weight.is_meta());
    auto model =
        fully_shard(net, Mesh::shard(world), {.precision = {.param_dtype = at::kBFloat16}});
    const auto named = [&] { model(make_example(1).x); };
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_error(named, ExitCode::Usage,
                   {"[forward] parameter 'input.weight' was built on the meta device and has no "
                    "values",
                    "load_safetensors", "call publish()"});
    }
    for (const ParameterShard& shard : model.parameter_shards()) {
      const at::Tensor value = whole->named_parameters()[shard.name].detach();
      shard.value.copy_(value.reshape({-1}).narrow(0, shard.begin, shard.end - shard.begin));
    }
    model.publish();
    auto expected = fully_shard(whole, alone(), {.precision = {.param_dtype = at::kBFloat16}});
    EXPECT_TRUE(at::equal(model(make_example(1).x), expected(make_example(1).x)));
  });
}

// Throws in the forward or backward that it is told to.
struct Fuse : torch::autograd::Function<Fuse> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            bool blow_in_backward) {
    context->saved_data["blow"] = blow_in_backward;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["blow"].toBool()) {
      throw std::runtime_error("blown in backward");
    }
    return {gradients[0], at::Tensor()};
  }
};

enum class Blow { Never, Forward, Backward };

template <class Model>
at::Tensor fused_loss(Model& model, int number, Blow blow) {
  return model
      .run(
          [&](StackNetImpl& stack, const at::Tensor& x) {
            at::Tensor y = stack.layers[1](stack.layers[0](x));
            if (blow == Blow::Forward) {
              stack.layers[2]->run(
                  [](LayerImpl& /*layer*/, const at::Tensor& z) -> at::Tensor {
                    throw std::runtime_error("blown in forward, with " + std::to_string(z.dim()));
                  },
                  y);
            }
            return stack.layers[2](Fuse::apply(y, blow == Blow::Backward));
          },
          odd_input(number))
      .square()
      .sum();
}

std::vector<at::Tensor> train_with_accident(const World& world, Blow blow, Strategy strategy) {
  auto net = seeded(3, [] { return StackNet(); });
  auto model = fully_shard(net, mesh_for(world, strategy), {.strategy = strategy});
  AdamW optimizer(model, {.lr = 1e-2});
  for (int step = 0; step < 4; ++step) {
    if (step == 2 && blow != Blow::Never) {
      EXPECT_THROW(fused_loss(model, 77, blow).backward(), std::runtime_error);
      optimizer.zero_grad();
    }
    fused_loss(model, step, Blow::Never).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> values;
  for (const ParameterShard& shard : model.parameter_shards()) {
    values.push_back(shard.value.clone());
  }
  return values;
}

TEST(Exceptions, InAStepLeaveTheModelUsable) {
  for (const int ranks : {1, 2, 3}) {
    for (const Strategy strategy : kStrategies) {
      run_ranks(ranks, [&](World world) {
        const auto expected = train_with_accident(world, Blow::Never, strategy);
        for (const Blow blow : {Blow::Forward, Blow::Backward}) {
          const auto actual = train_with_accident(world, blow, strategy);
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(at::equal(expected[i], actual[i])) << "parameter " << i;
          }
        }
      });
    }
  }
}

// Two steps by all; then the last rank is gone. Threads may still read its shards, and miss it
// first where the third unit's reduction has to make way for the first's; processes miss it at
// once.
template <class Leave>
void train_until_one_leaves(World world, const Leave& leave) {
  auto model = fully_shard(make_net(), Mesh::shard(world));
  AdamW optimizer(model);
  for (int step = 0; step < 3; ++step) {
    if (step == 2 && world.rank() == world.size() - 1) {
      leave();
      return;
    }
    model(make_example(step).x).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(DeadRank, OfAThreadEndsTheOthersWithAName) {
  run_ranks(3, [](World world) {
    const bool leaves = world.rank() == 2;
    const auto train = [&] { train_until_one_leaves(world, [] {}); };
    if (leaves) {
      train();
    } else {
      expect_error(train, ExitCode::PeerLost,
                   {"wait for a reduce buffer of unit 'block0', in backward of step 3", "on rank ",
                    " of 3: reduction of unit 'block2': missing rank ", "2 (has left)"});
    }
  });
}

TEST(DeadRank, OfAProcessEndsTheOthersWithAName) {
  const auto statuses = run_processes_over(Transport::ProcessGroups, 3, [](World world) {
    const auto train = [&] { train_until_one_leaves(world, [] { _exit(9); }); };
    expect_error(train, ExitCode::PeerLost,
                 {"all-gather of unit 'root', in forward of step 3, on rank ",
                  " of 3: ", "Missing rank 2. Another rank has ended, is unreachable"});
    if (testing::Test::HasFailure()) {
      throw std::runtime_error("another message");
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 9}));
}

}  // namespace
}  // namespace sherd::test
