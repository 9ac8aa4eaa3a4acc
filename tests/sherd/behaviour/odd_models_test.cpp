// Models that are not a plain stack of blocks, and steps that are not forward, backward, update:
// each against plain LibTorch.

#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

TEST(OddModels, TiedWeightInsideAUnitUsedByTwoKindsOfOperators) {
  expect_equals_plain(builder<TiedNet>(TiedNetImpl::Where::OneUnit), kSquares);
}

TEST(OddModels, TiedWeightBetweenUnits) {
  expect_equals_plain(builder<TiedNet>(TiedNetImpl::Where::TwoUnits), kSquares);
  auto model =
      fully_shard(builder<TiedNet>(TiedNetImpl::Where::TwoUnits)(), Mesh::shard(World::alone()));
  EXPECT_EQ(model.tied_names(),
            (std::vector<std::pair<std::string, std::string>>{{"second.weight", "first.weight"}}));
  EXPECT_THAT(model.plan(), testing::HasSubstr("root: 1 parameters, 49 elements"));
}

TEST(OddModels, TiedWeightBetweenRootAndUnit) {
  expect_equals_plain(builder<TiedNet>(TiedNetImpl::Where::RootAndUnit), kSquares);
}

TEST(OddModels, ModulesAndUnitsRegisteredTwice) {
  expect_equals_plain(builder<SharedModulesNet>(), kSquares);
}

TEST(OddModels, NestedUnits) {
  expect_equals_plain(builder<NestedNet>(), kSquares);
}

TEST(OddModels, SeveralInputsAndOutputs) {
  expect_equals_plain(builder<ManyNet>(), kSquares);
}

TEST(OddModels, EmbeddingAndSequentialOfUnits) {
  expect_equals_plain(builder<SequentialNet>(), [](auto& model, auto&, const Place& place) {
    return model(at::arange(place.rank, place.rank + 6) + place.step).square().sum();
  });
}

TEST(OddModels, UnitThatIsTheRoot) {
  expect_equals_plain(builder<Unit<Outer>>(), kSquares);
}

TEST(OddModels, UnitCalledTwiceInAStep) {
  expect_equals_plain(builder<StackNet>(), [](auto& model, auto&, const Place& place) {
    return model(input_of(place), std::vector<size_t>{0, 1, 0, 2, 1, 1}).square().sum();
  });
}

TEST(OddModels, UnitCalledTwiceIsReducedOnce) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(builder<StackNet>()(), Mesh::shard(world));
    model(odd_input(1), std::vector<size_t>{0, 1, 0, 2}).sum().backward();
    EXPECT_EQ(model.counts().reductions, 3);
    EXPECT_EQ(model.counts().gathers, 4 + 3);  // in backward it stays until its last use is done
  });
}

TEST(OddModels, OrderOfUnitsThatChangesFromStepToStep) {
  expect_equals_plain(builder<StackNet>(), [](auto& model, auto&, const Place& place) {
    const std::vector<std::vector<size_t>> orders = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0, 1}, {0, 2, 1}};
    return model(input_of(place), orders[static_cast<size_t>(place.step)]).square().sum();
  });
}

TEST(OddModels, UnitThatIsNotCalledIsLeftAlone) {
  const auto loss = [](auto& model, auto&, const Place& place) {
    const std::vector<std::vector<size_t>> orders = {{0, 1, 2}, {0, 2}, {2}, {0, 1, 2}};
    return model(input_of(place), orders[static_cast<size_t>(place.step)]).square().sum();
  };
  // Compared with itself: the two count steps differently for a parameter that sat some out.
  run_ranks(2, [&](World world) {
    auto net = builder<StackNet>()();
    auto model = fully_shard(net, Mesh::shard(world));
    AdamW optimizer(model);
    std::vector<std::vector<at::Tensor>> values(kComparedSteps + 1);
    const auto note = [&](std::vector<at::Tensor>& out) {
      for (const ParameterShard& shard : model.parameter_shards()) {
        out.push_back(shard.value.clone());
      }
    };
    note(values[0]);
    for (int step = 0; step < kComparedSteps; ++step) {
      loss(model, net, Place{step, world.rank()}).backward();
      optimizer.step();
      optimizer.zero_grad();
      note(values[static_cast<size_t>(step) + 1]);
    }
    // Parameters 2 and 3 are those of layer 1, which steps 1 and 2 leave out.
    for (const size_t i : {2U, 3U}) {
      if (values[0][i].numel() == 0) {
        continue;  // this rank holds nothing of it
      }
      EXPECT_FALSE(at::equal(values[0][i], values[1][i]));
      EXPECT_TRUE(at::equal(values[1][i], values[2][i]));
      EXPECT_TRUE(at::equal(values[2][i], values[3][i]));
      EXPECT_FALSE(at::equal(values[3][i], values[4][i]));
    }
  });
}

TEST(OddModels, UnitWhoseOutputIsNotUsedIsLeftAlone) {
  expect_equals_plain(builder<StackNet>(), [](auto& model, auto& net, const Place& place) {
    const at::Tensor x = input_of(place);
    if constexpr (std::is_same_v<decltype(model), decltype(net)>) {
      model->layers[1](x);
      return model(x, std::vector<size_t>{0, 2}).square().sum();
    } else {
      return model
          .run(
              [](StackNetImpl& stack, const at::Tensor& value) {
                stack.layers[1](value);
                return stack.forward(value, {0, 2});
              },
              x)
          .square()
          .sum();
    }
  });
}

/// Uses one of two experts.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl()
      : first(register_module("first", torch::nn::Linear(kOdd, kOdd))),
        second(register_module("second", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x, int64_t choice) {
    return at::tanh(choice == 0 ? first(x) : second(x));
  }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Experts);

struct ExpertNetImpl : torch::nn::Module {
  ExpertNetImpl()
      : a(register_module("a", Unit<Experts>())), b(register_module("b", Unit<Experts>())) {}
  at::Tensor forward(const at::Tensor& x, int64_t choice) { return b(a(x, choice), 1 - choice); }
  Unit<Experts> a, b;
};
TORCH_MODULE(ExpertNet);

// The whole unit is reduced, with zeros for what a rank did not use: no rank waits for a reduction
// that another leaves out.
TEST(OddModels, RanksUseOtherParametersOfAUnit) {
  expect_equals_plain(builder<ExpertNet>(), [](auto& model, auto&, const Place& place) {
    return model(input_of(place), int64_t{(place.rank + place.step) % 2}).square().sum();
  });
}

TEST(OddModels, OtherMethodsThroughRun) {
  expect_equals_plain(builder<StackNet>(), [](auto& /*model*/, auto& net, const Place& place) {
    at::Tensor x = net->layers[0](input_of(place));
    x = net->layers[1]->run(&LayerImpl::backwards, x, 0.5);
    return net->layers[2](x).square().sum();
  });
}

TEST(OddModels, TwoForwardsBeforeOneBackward) {
  expect_equals_plain(builder<NestedNet>(), [](auto& model, auto&, const Place& place) {
    const at::Tensor a = model(input_of(place));
    const at::Tensor b = model(input_of(Place{place.step + 50, place.rank}));
    return a.square().sum() + (a * b).sum();
  });
}

TEST(OddModels, TwoForwardsBeforeTwoBackwards) {
  expect_equals_plain(builder<NestedNet>(), [](auto& model, auto&, const Place& place) {
    const at::Tensor a = model(input_of(place)).square().sum();
    const at::Tensor b = model(input_of(Place{place.step + 50, place.rank})).square().sum();
    constexpr bool plain = std::is_same_v<decltype(model), NestedNet&>;
    // The plain run divides the loss it is given by the number of ranks; this one is its own.
    return plain ? a + b : (a.backward(), b + a.detach());
  });
}

TEST(OddModels, EvaluationBetweenForwardAndBackward) {
  expect_equals_plain(builder<NestedNet>(), [](auto& model, auto&, const Place& place) {
    const at::Tensor a = model(input_of(place)).square().sum();
    const at::NoGradGuard no_grad;
    const at::Tensor value = model(input_of(Place{place.step + 50, place.rank}));
    TORCH_CHECK(!value.requires_grad());
    return a;
  });
}

TEST(OddModels, InputThatNeedsAGradient) {
  run_ranks(2, [](World world) {
    auto plain = builder<NestedNet>()();
    auto model = fully_shard(builder<NestedNet>()(), Mesh::shard(world));
    at::Tensor expected = odd_input(1).requires_grad_(true);
    at::Tensor x = odd_input(1).requires_grad_(true);
    plain(expected).square().sum().backward();
    model(x).square().sum().backward();
    EXPECT_TRUE(at::allclose(expected.grad(), x.grad()));
  });
}

TEST(OddModels, FewerElementsThanRanks) {
  struct TinyImpl : torch::nn::Module {
    TinyImpl() : scale(register_parameter("scale", at::ones({1}))) {}
    at::Tensor forward(const at::Tensor& x) { return x * scale; }
    at::Tensor scale;
  };
  using Tiny = torch::nn::ModuleHolder<TinyImpl>;
  struct TinyNetImpl : torch::nn::Module {
    TinyNetImpl() : unit(register_module("unit", Unit<Tiny>())) {}
    at::Tensor forward(const at::Tensor& x) { return unit(x); }
    Unit<Tiny> unit;
  };
  expect_equals_plain(builder<torch::nn::ModuleHolder<TinyNetImpl>>(), kSquares);
}

struct WithoutInputsImpl : torch::nn::Module {
  WithoutInputsImpl()
      : table(register_parameter("table", at::randn({3, kOdd}))),
        layer(register_module("layer", Unit<Layer>())) {}
  at::Tensor forward() { return layer(table); }
  at::Tensor table;
  Unit<Layer> layer;
};
TORCH_MODULE(WithoutInputs);

TEST(OddModels, AModelWithoutInputs) {
  expect_equals_plain(builder<WithoutInputs>(), [](auto& model, auto&, const Place& place) {
    return (model() * odd_input(place.step * 10 + place.rank)).square().sum();
  });
}

TEST(OddModels, TwoModelsInOneProcess) {
  run_ranks(2, [](World world) {
    const auto loss_of = [](auto& a, auto& b, int step) {
      return (b(a(odd_input(step))) - 1).square().sum();
    };
    auto plain_a = builder<StackNet>()();
    auto plain_b = builder<NestedNet>()();
    auto a = fully_shard(builder<StackNet>()(), Mesh::shard(world));
    auto b = fully_shard(builder<NestedNet>()(), Mesh::shard(world));
    AdamW optimizer_a(a, {.lr = 1e-2});
    AdamW optimizer_b(b, {.lr = 1e-2});
    auto parameters = plain_a->parameters();
    for (const auto& parameter : plain_b->parameters()) {
      parameters.push_back(parameter);
    }
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      const at::Tensor expected = loss_of(plain_a, plain_b, step);
      const at::Tensor loss = loss_of(a, b, step);
      EXPECT_TRUE(at::allclose(expected, loss, 1e-5)) << expected << loss;
      expected.backward();
      loss.backward();
      optimizer.step();
      for (AdamW* each : {&optimizer_a, &optimizer_b}) {
        each->step();
        each->zero_grad();
      }
    }
  });
}

}  // namespace
}  // namespace sherd::test
