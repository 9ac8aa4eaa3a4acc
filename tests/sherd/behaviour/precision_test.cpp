// The dtypes of a sharded model: what is gathered, computed, summed, kept and returned.

#include <map>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/normalization.h>

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "src/step/step.h"
#include "tests/support/expect_error.h"
#include "tests/support/meshes.h"
#include "tests/support/odd_nets.h"
#include "tests/support/ranks.h"
#include "tests/support/seeded.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

using Wholes = std::map<std::string, at::Tensor>;

/// Gradients of plain models in `dtype`, one a rank, summed in fp32 in rank order: what mixed
/// precision means, written out.
template <class Build>
Wholes plain_gradients(const Build& build, c10::ScalarType dtype, int ranks) {
  Wholes sums;
  for (int rank = 0; rank < ranks; ++rank) {
    auto net = build();
    net->to(dtype);
    loss_of(net(odd_input(rank).to(dtype))).backward();
    for (const auto& item : net->named_parameters()) {
      const at::Tensor gradient = item.value().grad().to(at::kFloat);
      at::Tensor& sum = sums[item.key()];
      sum = sum.defined() ? sum + gradient : gradient;
    }
  }
  return sums;
}

void check_gradients(const ShardedModule& model, const Wholes& expected) {
  for (const ParameterShard& shard : model.parameter_shards()) {
    TORCH_CHECK(
        shard.gradient.scalar_type() == at::kFloat && shard.value.scalar_type() == at::kFloat,
        shard.name, " has no fp32 master or gradient");
    const at::Tensor part =
        expected.at(shard.name).reshape({-1}).narrow(0, shard.begin, shard.end - shard.begin);
    TORCH_CHECK(at::equal(part, shard.gradient), "the gradient of ", shard.name, " differs");
  }
}

// fp32 in, fp32 masters and gradients, computation in between in another dtype: the bits of a plain
// model in that dtype.
template <class Holder>
void expect_plain_bits(const ShardOptions& options = {}) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const int ranks : {1, 2, 3}) {
      const Wholes expected = plain_gradients(builder<Holder>(), dtype, ranks);
      for (const Strategy strategy :
           {Strategy::FullShard, Strategy::ShardGradOp, Strategy::NoShard}) {
        EXPECT_NO_THROW(run_ranks(
            ranks,
            [&](World world) {
              ShardOptions with_dtype = options;
              with_dtype.strategy = strategy;
              with_dtype.precision.param_dtype = dtype;
              auto model = fully_shard(builder<Holder>()(), Mesh::shard(world), with_dtype);
              model.set_gradient_divide_factor(1.0);
              const at::Tensor output = model(odd_input(world.rank()));
              TORCH_CHECK(output.scalar_type() == options.precision.output_dtype.value_or(dtype));
              loss_of(output).backward();
              check_gradients(model, expected);
            }))
            << c10::toString(dtype) << ", " << ranks << " ranks, " << name_of(strategy);
      }
    }
  }
}

TEST(ParamDtype, ComputesTheBitsOfAPlainModelInThatDtype) {
  expect_plain_bits<StackNet>();
  expect_plain_bits<NestedNet>();
}

// Tensors in optionals, vectors, pairs and tuples are cast as well.
TEST(ParamDtype, CastsStructuredInputs) {
  expect_plain_bits<ManyNet>();
}

TEST(ParamDtype, CastsTheSameWayWhenActivationsAreComputedAgain) {
  expect_plain_bits<StackNet>({.units = unit_policy::every_unit({.checkpoint_activations = true})});
  expect_plain_bits<ManyNet>({.units = unit_policy::every_unit({.checkpoint_activations = true})});
}

TEST(ParamDtype, InTrainingStaysCloseToFp32) {
  run_ranks(2, [](World world) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      double losses[2] = {0, 0};
      for (const bool low : {false, true}) {
        auto model = fully_shard(make_net(), Mesh::shard(world),
                                 {.precision = {.param_dtype = low ? dtype : at::kFloat}});
        AdamW optimizer(model, {.lr = 1e-2});
        for (int step = 0; step < 20; ++step) {
          const Example example = make_example(world.rank());
          const at::Tensor loss = sum_of_errors(model(example.x), example.y);
          loss.backward();
          optimizer.step();
          optimizer.zero_grad();
          losses[low ? 1 : 0] = loss.item<double>();
        }
      }
      EXPECT_NEAR(losses[0], losses[1], 0.05 * (1 + losses[0])) << c10::toString(dtype);
    }
  });
}

TEST(OutputDtype, IsThatOfWhatUnitsReturn) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Precision precision{.param_dtype = dtype, .output_dtype = at::kFloat};
    auto cast = fully_shard(builder<ManyNet>()(), Mesh::shard(World::alone()),
                            {.units = unit_policy::every_unit({.precision = precision})});
    const auto [a, list, index] = cast.module()->many->call(
        odd_input(1), std::nullopt, std::make_pair(odd_input(2), std::vector{odd_input(3)}));
    EXPECT_EQ(a.scalar_type(), at::kFloat);
    EXPECT_EQ(list[0].scalar_type(), at::kFloat);
    EXPECT_EQ(index.scalar_type(), at::kLong);  // never cast
  }
  auto own = fully_shard(builder<Layer>()(), Mesh::shard(World::alone()),
                         {.precision = {.param_dtype = at::kBFloat16}});
  auto wide =
      fully_shard(builder<Layer>()(), Mesh::shard(World::alone()),
                  {.precision = {.param_dtype = at::kBFloat16, .output_dtype = at::kFloat}});
  EXPECT_TRUE(at::equal(own(odd_input(1)).to(at::kFloat), wide(odd_input(1))));
}

/// Tells which dtypes it saw.
struct WitnessImpl : torch::nn::Module {
  WitnessImpl()
      : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kOdd})))),
        scale(register_buffer("scale", at::full({kOdd}, 1.0 + 1.0 / 512))),
        index(register_buffer("index", at::arange(kOdd))) {}
  at::Tensor forward(const at::Tensor& x) {
    input = x.scalar_type();
    weight = linear->weight.scalar_type();
    norm_weight = norm->weight.scalar_type();
    return norm(linear(x.to(weight)));
  }
  torch::nn::Linear linear;
  torch::nn::LayerNorm norm;
  at::Tensor scale;
  at::Tensor index;
  c10::ScalarType input = at::kDouble;
  c10::ScalarType weight = at::kDouble;
  c10::ScalarType norm_weight = at::kDouble;
};
TORCH_MODULE(Witness);
struct WitnessNetImpl : torch::nn::Module {
  WitnessNetImpl()
      : first(register_module("first", Unit<Witness>())),
        second(register_module("second", Unit<Witness>())) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  Unit<Witness> first;
  Unit<Witness> second;
};
TORCH_MODULE(WitnessNet);

bool is_of_norm(const std::string& name) {
  return name.find("norm") != std::string::npos;
}

TEST(CastForwardInputs, CanBeOff) {
  for (const bool cast : {true, false}) {
    auto net = builder<WitnessNet>()();
    auto model =
        fully_shard(net, Mesh::shard(World::alone()),
                    {.precision = {.param_dtype = at::kBFloat16, .cast_forward_inputs = cast}});
    model(odd_input(1));
    EXPECT_EQ(net->first->weight, at::kBFloat16);
    EXPECT_EQ(net->first->input, cast ? at::kBFloat16 : at::kFloat);
  }
}

TEST(CastForwardInputs, GivesAnFp32InputAnFp32Gradient) {
  auto model = fully_shard(builder<StackNet>()(), Mesh::shard(World::alone()),
                           {.precision = {.param_dtype = at::kBFloat16}});
  const at::Tensor x = odd_input(1).requires_grad_(true);
  loss_of(model(x)).backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  auto plain = builder<StackNet>()();
  plain->to(at::kBFloat16);
  const at::Tensor y = odd_input(1).requires_grad_(true);
  loss_of(plain(y.to(at::kBFloat16))).backward();
  EXPECT_TRUE(at::equal(x.grad(), y.grad()));
}

TEST(KeepsOwnDtype, OfNormsInsideABf16Unit) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](World world) {
      auto net = builder<WitnessNet>()();
      auto model =
          fully_shard(net, Mesh::shard(world),
                      {.precision = {.param_dtype = at::kBFloat16, .keeps_own_dtype = is_of_norm}});
      model.set_gradient_divide_factor(1.0);
      loss_of(model(odd_input(world.rank()))).backward();
      EXPECT_EQ(net->first->weight, at::kBFloat16);
      EXPECT_EQ(net->first->norm_weight, at::kFloat);
      EXPECT_THAT(model.plan(), testing::HasSubstr("first: 2 parameters, 56 elements, BFloat16"));
      EXPECT_THAT(model.plan(), testing::HasSubstr("first: 2 parameters, 14 elements, Float"));
      Wholes expected;
      for (int rank = 0; rank < world.size(); ++rank) {
        auto plain = builder<WitnessNet>()();
        plain->first->linear->to(at::kBFloat16);
        plain->second->linear->to(at::kBFloat16);
        loss_of(plain(odd_input(rank).to(at::kBFloat16))).backward();
        for (const auto& item : plain->named_parameters()) {
          const at::Tensor gradient = item.value().grad().to(at::kFloat);
          at::Tensor& sum = expected[item.key()];
          sum = sum.defined() ? sum + gradient : gradient;
        }
      }
      EXPECT_NO_THROW(check_gradients(model, expected));
    });
  }
}

TEST(BufferDtype, CastsFloatingPointBuffersOnce) {
  auto net = builder<WitnessNet>()();
  auto model =
      fully_shard(net, Mesh::shard(World::alone()), {.precision = {.param_dtype = at::kBFloat16}});
  EXPECT_EQ(net->first->scale.scalar_type(), at::kFloat);
  auto cast = builder<WitnessNet>()();
  auto other = fully_shard(cast, Mesh::shard(World::alone()),
                           {.precision = {.buffer_dtype = at::kBFloat16}});
  EXPECT_EQ(cast->first->scale.scalar_type(), at::kBFloat16);
  EXPECT_EQ(cast->first->index.scalar_type(), at::kLong);
  EXPECT_EQ(cast->named_buffers()["first.scale"].scalar_type(), at::kBFloat16);
  EXPECT_EQ(cast->first->linear->weight.scalar_type(), at::kFloat);
}

// Memory that a buffer gets after on_meta() is of the dtype that one with values is cast to.
TEST(BufferDtype, IsThatOfBuffersBuiltOnMeta) {
  auto net = on_meta([] { return WitnessNet(); });
  auto model =
      fully_shard(net, Mesh::shard(World::alone()), {.precision = {.buffer_dtype = at::kBFloat16}});
  EXPECT_EQ(net->first->scale.scalar_type(), at::kBFloat16);
  EXPECT_EQ(net->first->scale.device(), at::kCPU);
  EXPECT_EQ(net->first->index.scalar_type(), at::kLong);
  EXPECT_EQ(net->named_buffers()["first.scale"].scalar_type(), at::kBFloat16);
}

TEST(PerUnitPrecision, StandsAboveTheModels) {
  auto net = builder<WitnessNet>()();
  auto model = fully_shard(
      net, Mesh::shard(World::alone()),
      {.precision = {.param_dtype = at::kBFloat16},
       .units = [](const ModuleInfo& info) -> std::optional<UnitOptions> {
         if (!info.is_unit) {
           return std::nullopt;
         }
         return info.name == "first" ? UnitOptions{.precision = Precision{.param_dtype = at::kHalf}}
                                     : UnitOptions{};
       }});
  loss_of(model(odd_input(1))).backward();
  EXPECT_EQ(net->first->weight, at::kHalf);
  EXPECT_EQ(net->first->input, at::kHalf);
  EXPECT_EQ(net->second->weight, at::kBFloat16);
  EXPECT_EQ(net->second->input, at::kBFloat16);
  for (const ParameterShard& shard : model.parameter_shards()) {
    EXPECT_EQ(shard.value.scalar_type(), at::kFloat);
    EXPECT_EQ(shard.gradient.scalar_type(), at::kFloat);
    EXPECT_EQ(shard.original_dtype, at::kFloat);
  }
}

Wholes values_of(const ShardedModule& model) {
  Wholes values;
  for (const ParameterShard& shard : model.parameter_shards()) {
    values[shard.name] = shard.value.clone();
  }
  return values;
}

// With gradients off it is the fp32 model of its masters, bit by bit; training does not notice.
TEST(FullPrecisionInEval, GathersTheMasters) {
  for (const int ranks : {1, 2, 3}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      for (const Strategy strategy : kStrategies) {
        run_ranks(ranks, [&](World world) {
          Wholes trained[2];
          for (const bool evaluates : {false, true}) {
            const Precision precision{.param_dtype = dtype, .full_precision_in_eval = true};
            auto net = builder<NestedNet>()();
            auto model = fully_shard(net, mesh_for(world, strategy),
                                     {.strategy = strategy, .precision = precision});
            // Its masters stay those of the plain model while the learning rate is 0.
            AdamW optimizer(model, {.lr = 0.0});
            for (int step = 0; step < 4; ++step) {
              optimizer.set_lr(step < 2 ? 0.0 : 1e-2);
              const at::Tensor output = model(odd_input(world.rank()));
              EXPECT_EQ(output.scalar_type(), dtype);
              if (evaluates) {
                const at::NoGradGuard no_grad;
                const at::Tensor whole = model(odd_input(7));
                EXPECT_EQ(whole.scalar_type(), at::kFloat);
                if (step < 2) {
                  EXPECT_TRUE(at::equal(builder<NestedNet>()()(odd_input(7)), whole));
                }
              }
              loss_of(output).backward();
              optimizer.step();
              optimizer.zero_grad();
            }
            trained[evaluates ? 1 : 0] = values_of(model);
          }
          for (const auto& [name, value] : trained[0]) {
            EXPECT_TRUE(at::equal(value, trained[1].at(name))) << name;
          }
        });
      }
    }
  }
}

TEST(FullPrecisionInEval, IsOffUnlessAskedFor) {
  auto model = fully_shard(builder<NestedNet>()(), Mesh::shard(World::alone()),
                           {.precision = {.param_dtype = at::kBFloat16}});
  const at::NoGradGuard no_grad;
  EXPECT_EQ(model(odd_input(7)).scalar_type(), at::kBFloat16);
}

// A model that was built in bf16 computes in it, and still has an fp32 master.
TEST(OwnDtype, OfAModelBuiltInBf16) {
  run_ranks(2, [](World world) {
    auto net = builder<StackNet>()();
    net->to(at::kBFloat16);
    auto model = fully_shard(net, Mesh::shard(world));
    const at::Tensor output = model(odd_input(world.rank()).to(at::kBFloat16));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    loss_of(output).backward();
    for (const ParameterShard& shard : model.parameter_shards()) {
      EXPECT_EQ(shard.original_dtype, at::kBFloat16);
      EXPECT_EQ(shard.value.scalar_type(), at::kFloat);
      EXPECT_EQ(shard.gradient.scalar_type(), at::kFloat);
    }
  });
}

/// A frozen bf16 weight with trainable fp32 adapters beside it.
struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl()
      : weight(register_parameter("weight", (at::randn({kOdd, kOdd}) / 3).to(at::kBFloat16),
                                  /*requires_grad=*/false)),
        down(register_module("down", torch::nn::Linear(kOdd, 2))),
        up(register_module("up", torch::nn::Linear(2, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::linear(x.to(at::kBFloat16), weight).to(at::kFloat) + up(down(x));
  }
  at::Tensor weight;
  torch::nn::Linear down;
  torch::nn::Linear up;
};
TORCH_MODULE(Adapted);
struct AdaptedNetImpl : torch::nn::Module {
  AdaptedNetImpl()
      : first(register_module("first", Unit<Adapted>())),
        second(register_module("second", Unit<Adapted>())) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  Unit<Adapted> first;
  Unit<Adapted> second;
};
TORCH_MODULE(AdaptedNet);

TEST(OwnDtype, OfFp32AdaptersInsideABf16Unit) {
  run_ranks(3, [](World world) {
    auto model = fully_shard(builder<AdaptedNet>()(), Mesh::shard(world));
    model.set_gradient_divide_factor(1.0);
    loss_of(model(odd_input(world.rank()))).backward();
    EXPECT_EQ(detail::engine_of(model).model.units.size(),
              3U);  // root and two: no unit for an adapter
    Wholes expected;
    for (int rank = 0; rank < world.size(); ++rank) {
      auto plain = builder<AdaptedNet>()();
      loss_of(plain(odd_input(rank))).backward();
      for (const auto& item : plain->named_parameters()) {
        if (item.value().requires_grad()) {
          at::Tensor& sum = expected[item.key()];
          sum = sum.defined() ? sum + item.value().grad() : item.value().grad();
        }
      }
    }
    for (const ParameterShard& shard : model.parameter_shards()) {
      EXPECT_EQ(shard.trainable, shard.gradient.defined()) << shard.name;
      if (shard.trainable) {
        EXPECT_TRUE(at::equal(
            expected.at(shard.name).reshape({-1}).narrow(0, shard.begin, shard.gradient.numel()),
            shard.gradient));
      }
    }
  });
}

TEST(Precision, RefusesDtypesItDoesNotHave) {
  const auto refused = [](const Precision& precision, const std::string& what) {
    const auto shard = [&](const ShardOptions& options) {
      fully_shard(make_net(), Mesh::shard(World::alone()), options);
    };
    expect_error([&] { shard({.precision = precision}); }, ExitCode::Usage, {what});
    expect_error([&] { shard({.units = unit_policy::every_unit({.precision = precision})}); },
                 ExitCode::Usage, {what});
  };
  refused({.param_dtype = at::kDouble},
          "[fully_shard] param_dtype is Float, BFloat16 or Half, got Double.");
  refused({.param_dtype = at::kLong},
          "[fully_shard] param_dtype is Float, BFloat16 or Half, got Long.");
  refused({.reduce_dtype = at::kHalf},
          "[fully_shard] reduce_dtype is Float or BFloat16, got Half.");
  refused({.buffer_dtype = at::kDouble},
          "[fully_shard] buffer_dtype is Float, BFloat16 or Half, got Double.");
  refused({.output_dtype = at::kInt},
          "[fully_shard] output_dtype is Float, BFloat16 or Half, got Int.");
}

TEST(Dtypes, AreToldInOneLine) {
  auto net = make_net();
  int64_t halves = -net->head->bias.numel();
  for (const at::Tensor& parameter : net->parameters()) {
    halves += parameter.numel();
  }
  EXPECT_EQ(fully_shard(make_net(), alone()).dtypes(),
            "parameters and exchanged gradients Float; sums of gradients Float; masters Float");
  const Precision precision{
      .param_dtype = at::kBFloat16,
      .keeps_own_dtype = [](const std::string& name) { return name == "head.bias"; }};
  EXPECT_EQ(fully_shard(net, alone(), {.precision = precision}).dtypes(),
            "parameters and exchanged gradients BFloat16 (" + std::to_string(halves) +
                " elements), Float (3 elements); sums of gradients Float; masters Float");
}

TEST(Dtypes, AreThoseOfEachPolicy) {
  const auto dtypes_of = [](const Precision& precision) {
    return fully_shard(make_net(), alone(), {.precision = precision}).dtypes();
  };
  EXPECT_EQ(
      dtypes_of(
          {.param_dtype = at::kBFloat16, .master = Master::Split, .reduce_dtype = at::kBFloat16}),
      "parameters and exchanged gradients BFloat16; sums of gradients BFloat16; masters Float in "
      "two halves");
  EXPECT_EQ(
      dtypes_of({.param_dtype = at::kBFloat16, .master = Master::BFloat16}),
      "parameters and exchanged gradients BFloat16; sums of gradients Float; masters BFloat16");
  EXPECT_EQ(dtypes_of({.param_dtype = at::kHalf, .reduce_dtype = at::kBFloat16}),
            "parameters and exchanged gradients Half; sums of gradients Float; masters Float");
  // In fp32 nothing is narrower, whatever the policy; the norm's scale keeps its own dtype.
  EXPECT_EQ(
      dtypes_of({.param_dtype = at::kBFloat16,
                 .master = Master::BFloat16,
                 .reduce_dtype = at::kBFloat16,
                 .keeps_own_dtype = [](const std::string& name) { return name == "head.bias"; }}),
      "parameters and exchanged gradients BFloat16 (1695 elements), Float (3 elements); sums of "
      "gradients BFloat16 (1695 elements), Float (3 elements); masters BFloat16 (1695 elements), "
      "Float (3 elements)");
  auto frozen = make_net();
  for (at::Tensor& parameter : frozen->parameters()) {
    parameter.set_requires_grad(false);
  }
  EXPECT_EQ(fully_shard(frozen, alone()).dtypes(),
            "parameters and exchanged gradients Float; sums of gradients none; masters none");
}

}  // namespace
}  // namespace sherd::test
