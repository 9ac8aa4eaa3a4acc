// Which modules become units, and what each of them does in its own way.

#include <sstream>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>

#include "src/step/step.h"
#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/seeded.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

NestedNet nested() {
  return seeded(11, [] { return NestedNet(); });
}

/// The units that a policy makes of a model, in the order of their plan.
template <class Holder>
std::vector<std::string> units_of(Holder net, const UnitPolicy& policy) {
  auto model = fully_shard(std::move(net), Mesh::shard(World::alone()), {.units = policy});
  std::vector<std::string> names;
  std::istringstream lines(model.plan());
  for (std::string line; std::getline(lines, line);) {
    names.push_back(line.substr(0, line.find(':')));
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(Policy, IsEveryUnitUnlessSet) {
  const Names all = {"root", "a", "a.inner", "a.other", "b", "b.inner", "b.other"};
  EXPECT_EQ(units_of(nested(), {}), all);
  EXPECT_EQ(units_of(nested(), unit_policy::every_unit()), all);
}

TEST(Policy, OfType) {
  EXPECT_EQ(units_of(nested(), unit_policy::of_type<Outer>()), (Names{"root", "a", "b"}));
  EXPECT_EQ(units_of(nested(), unit_policy::of_type<Layer>()),
            (Names{"root", "a.inner", "a.other", "b.inner", "b.other"}));
  EXPECT_EQ(units_of(nested(), unit_policy::of_type<Layer, Outer>()).size(), 7U);
}

TEST(Policy, MinNumel) {
  constexpr int64_t kLayer = kOdd * kOdd + kOdd;
  EXPECT_EQ(units_of(nested(), unit_policy::min_numel(kLayer + 1)), (Names{"root", "a", "b"}));
  EXPECT_EQ(units_of(nested(), unit_policy::min_numel(kLayer)).size(), 7U);
  EXPECT_EQ(units_of(nested(), unit_policy::min_numel(4 * kLayer + 1)), (Names{"root"}));
}

TEST(Policy, Named) {
  const auto policy = unit_policy::named(
      [](const std::string& name) { return name == "a" || name.ends_with("inner"); });
  EXPECT_EQ(units_of(nested(), policy), (Names{"root", "a", "a.inner", "b.inner"}));
}

TEST(Policy, IsAskedOuterModulesFirst) {
  Names asked;
  units_of(nested(), [&](const ModuleInfo& info) -> std::optional<UnitOptions> {
    asked.push_back(info.name + " " + std::to_string(info.numel) + (info.is_unit ? " unit" : ""));
    return std::nullopt;
  });
  EXPECT_EQ(asked, (Names{"a 224 unit", "a.before 56", "a.inner 56 unit", "a.inner.linear 56",
                          "a.other 56 unit", "a.other.linear 56", "a.after 56", "b 224 unit",
                          "b.before 56", "b.inner 56 unit", "b.inner.linear 56", "b.other 56 unit",
                          "b.other.linear 56", "b.after 56", "head 16"}));
}

TEST(Policy, ThatChoosesAModuleOutsideUnitsIsAnErrorWithItsName) {
  const auto policy =
      unit_policy::named([](const std::string& name) { return name == "a.before"; });
  expect_error([&] { units_of(nested(), policy); }, ExitCode::Usage,
               {"[fully_shard] the policy chose module 'a.before', which no Unit<> holds: declare "
                "it as sherd::Unit<Block> in its parent, or let the policy look at "
                "ModuleInfo::is_unit."});
}

void expect_parity(const UnitPolicy& policy) {
  expect_equals_plain([] { return nested(); }, kSquares, {.units = policy});
}

// What a policy leaves out falls to the enclosing unit, whichever of the two it leaves out.
TEST(Policy, MayLeaveOutTheOuterOrTheInnerUnit) {
  expect_parity(unit_policy::of_type<Outer>());
  expect_parity(unit_policy::of_type<Layer>());
  expect_parity(unit_policy::named([](const std::string& name) { return name == "a.inner"; }));
  expect_parity([](const ModuleInfo&) { return std::optional<UnitOptions>(); });
}

TEST(Policy, GivesEachUnitItsOptions) {
  auto model = fully_shard(
      nested(), Mesh::shard(World::alone()),
      {.units = [](const ModuleInfo& info) -> std::optional<UnitOptions> {
        if (info.name == "a") {
          return UnitOptions{.precision = Precision{.param_dtype = at::kBFloat16}};
        }
        return info.name == "b" ? std::optional(UnitOptions{.checkpoint_activations = true})
                                : std::nullopt;
      }});
  EXPECT_EQ(model.plan(),
            "root: 2 parameters, 16 elements, Float, 128 bytes gathered, 128 bytes per rank\na: 8 "
            "parameters, 224 elements, BFloat16, 768 bytes gathered, 768 bytes per rank and 1536 "
            "of fp32 master\nb: 8 parameters, 224 elements, Float, 1280 bytes gathered, 1280 bytes "
            "per rank, activations checkpointed\n");
}

TEST(Plan, ListsSegmentsByDtypeAndTrainabilityWithBytesARank) {
  run_ranks(4, [](World world) {
    auto net = make_net();
    net->blocks[1]->up->weight.requires_grad_(false);
    auto model = fully_shard(
        net, Mesh::shard(world),
        {.precision = {.keeps_own_dtype =
                           [](const std::string& name) { return name.ends_with("bias"); }},
         .units = unit_policy::named([](const std::string& name) { return name == "block1"; })});
    EXPECT_THAT(model.plan(),
                testing::HasSubstr("block1: 1 parameters, 247 elements, Float, frozen, 1024 bytes "
                                   "gathered, 256 bytes per rank"));
  });
}

/// Units in a Sequential, in an AnyModule and in a ModuleList.
struct ContainerNetImpl : torch::nn::Module {
  ContainerNetImpl() : list(register_module("list", torch::nn::ModuleList())) {
    sequential = register_module("sequential", torch::nn::Sequential(Unit<Layer>(), Unit<Layer>()));
    Unit<Layer> held;
    any = torch::nn::AnyModule(register_module("any", held));
    list->push_back(Unit<Layer>());
    list->push_back(Unit<Layer>());
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = any.forward(sequential->forward(x));
    for (size_t i = 0; i < list->size(); ++i) {
      y = list->at<UnitImpl<LayerImpl>>(i).forward(y);
    }
    return y;
  }
  torch::nn::Sequential sequential{nullptr};
  torch::nn::AnyModule any;
  torch::nn::ModuleList list;
};
TORCH_MODULE(ContainerNet);

TEST(Containers, OfUnits) {
  const auto build = [] { return seeded(11, [] { return ContainerNet(); }); };
  expect_equals_plain(build, kSquares);
  EXPECT_EQ(units_of(build(), {}),
            (Names{"list.0", "list.1", "sequential.0", "sequential.1", "any"}));
  run_ranks(2, [&](World world) {
    auto model = fully_shard(build(), Mesh::shard(world));
    model(odd_input(0)).sum().backward();
    EXPECT_EQ(model.counts().gathers, 2 * 5);  // each was called as a unit; the root has nothing
  });
}

// Left alone: the module's own tensors, neither sharded nor reduced nor updated.
TEST(Ignored, ParametersStayTheModules) {
  const auto ignored = [](const std::string& name) {
    return name.starts_with("a.inner") || name == "head.weight";
  };
  const auto build = [] { return nested(); };
  const PlainTrace trace = [&] {
    // The plain reference keeps them constant.
    return train_unsharded(
        [&] {
          auto net = build();
          for (const auto& item : net->named_parameters()) {
            item.value().requires_grad_(!ignored(item.key()));
          }
          return net;
        },
        kSquares, 2);
  }();
  for (const Strategy strategy : kStrategies) {
    EXPECT_NO_THROW(run_ranks(2, [&](World world) {
      auto net = build();
      auto model =
          fully_shard(net, mesh_for(world, strategy), {.strategy = strategy, .ignored = ignored});
      for (const ParameterShard& shard : model.parameter_shards()) {
        TORCH_CHECK(!ignored(shard.name), shard.name, " is sharded");
      }
      const at::Tensor before = net->head->weight.detach().clone();
      train_and_check(model, net, kSquares, trace);
      TORCH_CHECK(at::equal(before, net->head->weight), "an ignored parameter was updated");
      // Its gradient is this rank's own, of all steps: nobody reduced it, nobody forgot it.
      TORCH_CHECK(net->head->weight.grad().defined(), "its gradient is the module's");
    })) << name_of(strategy);
  }
}

TEST(ForwardOrder, IsPrefetchedInTheFirstStep) {
  const Names order = {"a", "a.inner", "a.other", "b", "b.inner", "b.other"};
  run_ranks(2, [&](World world) {
    std::vector<at::Tensor> outputs;
    for (const bool told : {false, true}) {
      auto model = fully_shard(nested(), Mesh::shard(world),
                               {.prefetch_depth = 2, .forward_order = told ? order : Names()});
      const at::Tensor output = model(odd_input(1));
      outputs.push_back(output.detach());
      output.sum().backward();
      EXPECT_EQ(model.counts().gathers, 1 + 2 * 6);
    }
    EXPECT_TRUE(at::equal(outputs[0], outputs[1]));
  });
}

TEST(ForwardOrder, ThatNamesNoUnitIsAnErrorWithTheName) {
  expect_error(
      [] {
        fully_shard(nested(), Mesh::shard(World::alone()), {.forward_order = {"a", "a.outer"}});
      },
      ExitCode::Usage,
      {"[fully_shard] forward_order names 'a.outer', which is not a unit: print "
       "ShardedModule::plan() to see their names."});
}

TEST(ForwardOrder, ThatDiffersBetweenRanksIsNamed) {
  run_ranks(2, [](World world) {
    const Names order = {world.rank() == 0 ? "a" : "b"};
    expect_error([&] { fully_shard(nested(), Mesh::shard(world), {.forward_order = order}); },
                 ExitCode::RanksDisagree,
                 {"Rank 0 has forward_order 'a'; rank 1 has forward_order 'b'."});
  });
}

// Whatever was expected: too early, twice, not at all, in another order. Wrong guesses cost memory.
TEST(Prefetch, WithWrongGuessesChangesNoResult) {
  using Order = std::vector<size_t>;
  const std::vector<Order> orders = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0, 1}, {2, 0, 1, 1, 0, 2}};
  const auto loss = [&](auto& model, auto&, const Place& place) {
    return model(input_of(place), orders[static_cast<size_t>(place.step)]).square().sum();
  };
  const auto build = [] { return seeded(11, [] { return StackNet(); }); };
  for (const int ranks : {2, 3}) {
    const PlainTrace trace = train_unsharded(build, loss, ranks);
    for (const int depth : {0, 1, 2, 8}) {
      for (const auto prefetch : {BackwardPrefetch::Pre, BackwardPrefetch::Post}) {
        EXPECT_NO_THROW(run_ranks(ranks,
                                  [&](World world) {
                                    auto net = build();
                                    auto model = fully_shard(
                                        net, Mesh::shard(world),
                                        {.prefetch_depth = depth,
                                         .backward_prefetch = prefetch,
                                         .forward_order = {"layer2", "layer0", "layer2"}});
                                    train_and_check(model, net, loss, trace);
                                  }))
            << ranks << " ranks, depth " << depth;
      }
    }
  }
}

// A unit that a step leaves out was gathered ahead for nothing, and is not left gathered.
TEST(Prefetch, OfAUnitThatIsNotCalledIsGivenUp) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(StackNet(), Mesh::shard(world), {.prefetch_depth = 2});
    for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2}, {0, 2}, {0, 1, 2}}) {
      model(odd_input(1), order).sum().backward();
      for (const auto& unit : detail::engine_of(model).model.units) {
        EXPECT_EQ(unit->storage_state(), detail::StorageState::Sharded) << unit->name();
      }
    }
  });
}

/// Statistics that forward writes, as batch normalisation does, and a table of indices.
struct CountingImpl : torch::nn::Module {
  CountingImpl()
      : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))),
        mean(register_buffer("mean", at::zeros({kOdd}))),
        calls(register_buffer("calls", at::zeros({1}, at::kLong))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    mean.mul_(0.5).add_(x.to(mean.scalar_type()).mean(0));
    calls.add_(1);
    const at::AutoGradMode with_gradients(true);
    return linear(x - mean.to(x.scalar_type()));
  }
  torch::nn::Linear linear;
  at::Tensor mean;
  at::Tensor calls;
};
TORCH_MODULE(Counting);
struct CountingNetImpl : torch::nn::Module {
  CountingNetImpl() : unit(register_module("unit", Unit<Counting>())) {}
  at::Tensor forward(const at::Tensor& x) { return unit(x); }
  Unit<Counting> unit;
};
TORCH_MODULE(CountingNet);

/// Keeps the units whose gathers began.
class GatheredUnits final : public CollectiveObserver {
 public:
  void started(const Collective& collective) override {
    if (collective.operation == Collective::Operation::Gather) {
      units.push_back(collective.unit);
    }
  }
  std::vector<std::string> units;
};

// A unit that comes again without the root begins an iteration: what came before is its order, and
// not a list that grows with every call.
TEST(Prefetch, WithoutTheRootGoesFromOneCallToItsRepetition) {
  World world = World::alone();
  const auto gathered = std::make_shared<GatheredUnits>();
  world.set_observer(gathered);
  auto net = make_net();
  auto model = fully_shard(net, Mesh::shard(world), {.prefetch_depth = 1});
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({3, 13});
  for (int call = 0; call < 100; ++call) {
    net->blocks[1](x);
    net->blocks[0](x);
  }
  gathered->units.clear();
  net->blocks[1](x);
  EXPECT_EQ(gathered->units, (Names{"block1", "block0"}));
  net->blocks[0](x);
  EXPECT_EQ(gathered->units, (Names{"block1", "block0"}));
}

TEST(Buffers, StayWithTheModuleAndAreWrittenByForward) {
  run_ranks(2, [](World world) {
    const auto build = [] { return seeded(11, [] { return CountingNet(); }); };
    auto plain = build();
    auto net = build();
    auto model = fully_shard(net, Mesh::shard(world));
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(at::equal(plain(odd_input(step)), model(odd_input(step))));
    }
    EXPECT_TRUE(at::equal(plain->unit->mean, net->unit->mean));
    EXPECT_EQ(net->unit->calls.item<int64_t>(), 3);
  });
}

}  // namespace
}  // namespace sherd::test
