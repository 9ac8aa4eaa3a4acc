// LoRA adapters of any module: which layers get one, what is refused, and that a sharded model
// trains them as a plain one does, on a base that nobody touches.

#include "sherd/lora.h"

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "sherd/communicator.h"
#include "sherd/memory.h"
#include "sherd/state_dict.h"
#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/ranks.h"
#include "tests/support/seeded.h"
#include "tests/support/whole_state.h"

namespace sherd::test {
namespace {

struct AdaptableLayerImpl : torch::nn::Module {
  AdaptableLayerImpl()
      : up(register_module("up", LoraLinear(kOdd, kOdd + 2))),
        down(register_module("down",
                             LoraLinear(torch::nn::LinearOptions(kOdd + 2, kOdd).bias(false)))),
        norm(register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{kOdd}))) {}
  at::Tensor forward(const at::Tensor& x) { return norm(down(at::tanh(up(x)))) + x; }
  LoraLinear up, down;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(AdaptableLayer);

struct AdaptableNetImpl : torch::nn::Module {
  AdaptableNetImpl()
      : a(register_module("a", Unit<AdaptableLayer>())),
        b(register_module("b", Unit<AdaptableLayer>())),
        head(register_module("head", torch::nn::Linear(kOdd, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return head(b(a(x))); }
  Unit<AdaptableLayer> a, b;
  torch::nn::Linear head;
};
TORCH_MODULE(AdaptableNet);

constexpr LoraShape kShape = {.rank = 3, .alpha = 6};

// B is not zero, so that A has a gradient.
AdaptableNet adapted_net(const LoraOptions& options = {.shape = kShape}) {
  return seeded(11, [&] {
    AdaptableNet net;
    lora(*net, options);
    for (const auto& item : net->named_parameters()) {
      if (item.key().ends_with("lora_B.weight")) {
        item.value().detach().normal_(0, 0.3);
      }
    }
    return net;
  });
}

using Names = std::vector<std::string>;

TEST(Lora, AdaptsEachLinearLayerWithoutTargets) {
  AdaptableNet net;
  EXPECT_EQ(lora(*net, {.shape = kShape}), (Names{"a.up", "a.down", "b.up", "b.down"}));
  std::map<std::string, std::vector<int64_t>> trained;
  for (const auto& item : net->named_parameters()) {
    if (item.value().requires_grad()) {
      trained[item.key()] = item.value().sizes().vec();
    }
  }
  EXPECT_EQ(trained.size(), 8);
  EXPECT_EQ(trained["a.up.lora_A.weight"], (std::vector<int64_t>{3, kOdd}));
  EXPECT_EQ(trained["b.down.lora_B.weight"], (std::vector<int64_t>{kOdd, 3}));
}

TEST(Lora, AdaptsWhatTheTargetsName) {
  const auto adapted = [](const Names& targets) {
    AdaptableNet net;
    return lora(*net, {.shape = kShape, .targets = targets});
  };
  EXPECT_EQ(adapted({"down"}), (Names{"a.down", "b.down"}));
  EXPECT_EQ(adapted({"a.up", "down"}), (Names{"a.up", "a.down", "b.down"}));
}

TEST(Lora, GivesEachModuleTheShapeThatIsChosen) {
  AdaptableNet net;
  const auto choose = [](const std::string& module) -> std::optional<LoraShape> {
    if (module.ends_with("up")) {
      return std::nullopt;
    }
    return LoraShape{.rank = module == "a.down" ? 2 : 4, .alpha = 6, .rank_stabilized = true};
  };
  EXPECT_EQ(lora(*net, {.choose = choose}), (Names{"a.down", "b.down"}));
  EXPECT_EQ(net->a->down->lora()->A.size(0), 2);
  EXPECT_DOUBLE_EQ(net->b->down->lora()->scale, 3);
  EXPECT_EQ(net->a->up->lora(), nullptr);
}

TEST(Lora, StartsWithABoundedAAndWithTheBasesBits) {
  AdaptableNet base = seeded(5, [] { return AdaptableNet(); });
  AdaptableNet net = seeded(5, [] { return AdaptableNet(); });
  lora(*net, {.shape = {.rank = 64, .alpha = 6, .dropout = 0.5}});
  const double most = net->a->up->lora()->A.abs().max().item<double>();
  EXPECT_LE(most, 1 / std::sqrt(kOdd));
  EXPECT_GE(most, 0.9 / std::sqrt(kOdd));
  EXPECT_TRUE(at::equal(base->forward(odd_input(1)), net->forward(odd_input(1))));
}

TEST(Lora, ComputesBesideTheBase) {
  AdaptableNet net = adapted_net();
  const auto& layer = net->a->up;
  const at::Tensor x = odd_input(1), base = at::linear(x, layer->weight, layer->bias);
  const LoraAdapter& adapter = *layer->lora();
  const at::Tensor expected = base + at::linear(at::linear(x, adapter.A), adapter.B) * 2;
  EXPECT_TRUE(at::allclose(layer->forward(x), expected));
  enable_lora(*net, false);
  EXPECT_TRUE(at::equal(layer->forward(x), base));
  enable_lora(*net, true);
  EXPECT_TRUE(at::allclose(layer->forward(x), expected));
}

TEST(Lora, DropsInTrainingAlone) {
  AdaptableNet net =
      adapted_net({.shape = {.rank = 3, .alpha = 6, .dropout = 0.5}, .targets = {"a.up"}});
  const auto& layer = net->a->up;
  EXPECT_FALSE(at::equal(layer->forward(odd_input(1)), layer->forward(odd_input(1))));
  net->eval();
  EXPECT_TRUE(at::equal(layer->forward(odd_input(1)), layer->forward(odd_input(1))));
}

TEST(Lora, RefusesBeforeItChangesAnything) {
  struct Refused {
    LoraOptions options;
    Names parts;
  };
  const std::vector<Refused> cases = {
      {{.shape = {.rank = 0, .alpha = 6}}, {"rank 0 for module 'a.up'", "at least rank 1"}},
      {{.shape = {.rank = 2}}, {"alpha 0.0", "change nothing", "LoraShape::alpha"}},
      {{.shape = {.rank = 2, .alpha = std::nan("")}}, {"alpha nan", "change nothing"}},
      {{.shape = {.rank = 2, .alpha = 6, .dropout = 1}}, {"dropout 1.0", "below 1"}},
      {{.shape = kShape, .targets = {"q_proj"}}, {"target 'q_proj' matches no module", "down, up"}},
      {{.shape = kShape, .targets = {"up", "head"}},
       {"'head'", "a torch::nn::Linear", "sherd::LoraLinear"}},
      {{.shape = kShape, .targets = {"norm"}}, {"'a.norm'", "no linear layer"}},
      {{.choose = [](const std::string&) { return std::optional<LoraShape>(); }},
       {"chose no module", "down, up"}}};
  for (const Refused& one : cases) {
    AdaptableNet net;
    expect_error([&] { lora(*net, one.options); }, ExitCode::Usage, one.parts);
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(item.value().requires_grad()) << item.key();
      EXPECT_EQ(item.key().find("lora_"), std::string::npos) << item.key();
    }
  }
}

TEST(Lora, RefusesAModelWithoutAPlaceForAdapters) {
  NestedNet net;
  expect_error([&] { lora(*net, {.shape = kShape}); }, ExitCode::Usage,
               {"no layer with a place for an adapter", "sherd::LoraLinear"});
}

TEST(Lora, RefusesASecondAdapterAndAShardedModel) {
  AdaptableNet net = adapted_net({.shape = kShape, .targets = {"up"}});
  expect_error([&] { lora(*net, {.shape = kShape}); }, ExitCode::Usage,
               {"module 'a.up' has an adapter already", "LoraOptions::choose"});
  AdaptableNet other;
  const auto model = fully_shard(other, Mesh::shard(World::alone()));
  expect_error([&] { lora(*other, {.shape = kShape}); }, ExitCode::Usage,
               {"is sharded already", "before fully_shard()"});
}

TEST(Lora, TrainsAsAPlainModelOnAnyRanks) {
  expect_equals_plain([] { return adapted_net(); }, kSquares);
  expect_equals_plain(
      [] {
        return adapted_net({.shape = kShape, .targets = {"a.up", "down"}});
      },
      kSquares);
}

TEST(Lora, OfAModelOnMetaHasTheSameBitsOnAnyRanks) {
  const auto fill = [](ParameterInit& parameter) {
    if (!initialize_lora(parameter)) {
      parameter.fill_constant(0.5);
    }
  };
  const auto made = [&](const World& world) {
    auto model = fully_shard(on_meta([] {
                               AdaptableNet net;
                               lora(*net, {.shape = kShape});
                               return net;
                             }),
                             Mesh::shard(world));
    initialize(model, 17, fill);
    return model;
  };
  const auto alone = made(World::alone());
  const WholeState expected = masters_of(alone);
  const at::Tensor& A = expected.at("b.up.lora_A.weight");
  EXPECT_LE(A.abs().max().item<double>(), 1 / std::sqrt(kOdd));
  EXPECT_GT(A.std().item<double>(), 0.1);
  EXPECT_EQ(expected.at("b.up.lora_B.weight").count_nonzero().item<int64_t>(), 0);
  for (const int ranks : {2, 3}) {
    EXPECT_NO_THROW(run_ranks(ranks, [&](const World& world) {
      const auto model = made(world);
      check_same_bits(model, expected);
    })) << ranks;
  }
}

// Bytes of reductions and gathers of a step.
class ReductionBytes final : public CollectiveObserver {
 public:
  void started(const Collective& collective) override {
    bytes[collective.operation] += collective.bytes;
  }
  std::map<Collective::Operation, int64_t> bytes;
};

template <class Model>
void train_step(Model& model, AdamW& optimizer, int64_t number) {
  loss_of(model(odd_input(number))).backward();
  optimizer.step();
  optimizer.zero_grad();
}

int64_t reduced_bytes(bool adapted) {
  int64_t bytes = 0;
  run_ranks(2, [&](World world) {
    auto observer = std::make_shared<ReductionBytes>();
    world.set_observer(observer);
    auto model = fully_shard(adapted ? adapted_net() : seeded(11, [] { return AdaptableNet(); }),
                             Mesh::shard(world));
    AdamW optimizer(model);
    observer->bytes.clear();
    train_step(model, optimizer, world.rank());
    if (world.rank() == 0) {
      bytes = observer->bytes[Collective::Operation::Reduction];
    }
    world.barrier();
  });
  return bytes;
}

TEST(Lora, ReducesTheAdaptersGradientsAlone) {
  const int64_t base = reduced_bytes(false), adapters = reduced_bytes(true);
  // A rank sends half of each unit's segment of adapters, padded to 64 bytes.
  const int64_t of_a_unit = 4 * 2 * 3 * (kOdd + kOdd + 2);
  EXPECT_GE(adapters, 2 * of_a_unit / 2);
  EXPECT_LE(adapters, 2 * (of_a_unit / 2 + 64 * 4));
  EXPECT_GT(base, adapters);
}

TEST(Lora, LeavesTheBaseWithoutMastersMomentsAndGradients) {
  AdaptableNet net = adapted_net();
  int64_t base = 0, trained = 0;
  for (const at::Tensor& parameter : net->parameters()) {
    (parameter.requires_grad() ? trained : base) += parameter.numel();
  }
  auto model =
      fully_shard(net, Mesh::shard(World::alone()), {.precision = {.param_dtype = at::kBFloat16}});
  AdamW optimizer(model);
  train_step(model, optimizer, 1);
  const auto bytes = [&](MemoryKind kind) { return model.memory().bytes(kind); };
  const int64_t padding = 8 * 32;  // elements of eight matrices, each to 64 bytes
  EXPECT_GE(bytes(MemoryKind::TravellingShard), 2 * (base + trained));
  EXPECT_LE(bytes(MemoryKind::MasterShard), 4 * (trained + padding));
  EXPECT_EQ(bytes(MemoryKind::OptimizerState), 2 * bytes(MemoryKind::MasterShard));
}

TEST(Lora, LeavesTheBasesBitsAlone) {
  const WholeState before = [] {
    AdaptableNet net = adapted_net();
    const auto model = fully_shard(net, Mesh::shard(World::alone()));
    return masters_of(model);
  }();
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](World world) {
      auto model = fully_shard(adapted_net(), Mesh::shard(world));
      AdamW optimizer(model, {.lr = 1e-2, .weight_decay = 0.1});
      for (int64_t step = 0; step < 50; ++step) {
        train_step(model, optimizer, step * ranks + world.rank());
      }
      for (const ParameterShard& shard : model.parameter_shards()) {
        const at::Tensor whole = before.at(shard.name).reshape({-1});
        const at::Tensor was = whole.narrow(0, shard.begin, shard.end - shard.begin);
        const bool is_base = shard.name.find("lora_") == std::string::npos;
        TORCH_CHECK(at::equal(shard.value, was) == is_base || shard.value.numel() == 0, shard.name);
      }
      world.barrier();
    });
  }
}

}  // namespace
}  // namespace sherd::test
