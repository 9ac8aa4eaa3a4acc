// What programs that use the library do beyond the examples: each either equals plain LibTorch, or
// ends in an error that names what, where, and what to do instead.

#include <ATen/autocast_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_rfft.h>
#include <gtest/gtest.h>

#include "sherd/state_dict.h"
#include "tests/support/compare_with_plain.h"
#include "tests/support/expect_error.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

ShardOptions with_checkpoints(Strategy strategy = Strategy::FullShard) {
  return {.strategy = strategy, .units = unit_policy::every_unit({.checkpoint_activations = true})};
}

/// A net of one unit between two layers of the root.
template <class Block>
struct AroundImpl : torch::nn::Module {
  AroundImpl()
      : before(register_module("before", torch::nn::Linear(kOdd, kOdd))),
        unit(register_module("unit", Unit<Block>())) {}
  at::Tensor forward(const at::Tensor& x) { return unit(before(x)); }
  torch::nn::Linear before;
  Unit<Block> unit;
};
template <class Block>
using Around = torch::nn::ModuleHolder<AroundImpl<Block>>;

// ---- Weights written in forward ----

struct NoisyImpl : torch::nn::Module {
  NoisyImpl() : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) {
    {
      const at::NoGradGuard no_grad;
      linear->weight.add_(1);
    }
    at::Tensor y = linear(x);
    const at::NoGradGuard no_grad;
    linear->weight.sub_(1);
    return y;
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Noisy);

const std::vector<std::string> kWritten = {
    "[forward] unit 'unit' wrote its parameter 'unit.linear.weight' in its forward"};

TEST(LibraryUser, WeightsWrittenInForwardOverThreads) {
  for (const Strategy strategy : kStrategies) {
    for (const int ranks : {1, 2}) {
      run_ranks(ranks, [&](World world) {
        auto model = fully_shard(builder<Around<Noisy>>()(), mesh_for(world, strategy),
                                 {.strategy = strategy});
        expect_error([&] { model(odd_input(1)); }, ExitCode::Usage, kWritten);
      });
    }
  }
}

TEST(LibraryUser, WeightsWrittenInForwardOverSharedMemory) {
  for (const Transport transport : kTransports) {
    const auto statuses = run_processes_over(transport, 2, [](World world) {
      auto model = fully_shard(builder<Around<Noisy>>()(), Mesh::shard(world));
      world.barrier();
      expect_error([&] { model(odd_input(1)); }, ExitCode::Usage, kWritten);
      TORCH_CHECK(!testing::Test::HasFailure());
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
  }
}

// ---- Replicas with other values ----

TEST(LibraryUser, ReplicasThatBeginWithOtherValues) {
  for (const Strategy strategy : {Strategy::NoShard, Strategy::HybridShard}) {
    run_ranks(4, [&](World world) {
      const auto own_seed = [&] {
        return seeded(3 + static_cast<uint64_t>(world.rank()), [] { return StackNet(); });
      };
      auto model = fully_shard(own_seed(), mesh_for(world, strategy), {.strategy = strategy});
      expect_error([&] { model(odd_input(1)); }, ExitCode::RanksDisagree,
                   {"values of parameter 'layer0.linear.weight'", "sync_module_states"});
      const auto full = own_seed();
      load_from_rank0(model, [&](const std::string& name) {
        const at::Tensor* parameter = full->named_parameters().find(name);
        return parameter == nullptr ? at::Tensor() : parameter->detach();
      });
      EXPECT_NO_THROW(model(odd_input(1)));

      auto net = own_seed();
      sync_module_states(*net, world);
      auto same = fully_shard(net, mesh_for(world, strategy), {.strategy = strategy});
      EXPECT_NO_THROW(same(odd_input(1)));
    });
  }
}

TEST(LibraryUser, AnotherSeedOfInitializeOnEachRank) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(on_meta([] { return make_net(); }), Mesh::shard(world),
                             {.strategy = Strategy::NoShard});
    expect_error(
        [&] {
          initialize(model, static_cast<uint64_t>(world.rank()),
                     [](ParameterInit& init) { init.fill_normal(0, 1); });
        },
        ExitCode::RanksDisagree, {"seed"});
  });
}

// ---- Arguments that forward writes ----

struct WriterImpl : torch::nn::Module {
  WriterImpl() : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x, at::Tensor& state, std::vector<at::Tensor>& cache) {
    const at::Tensor y = at::tanh(linear(x + state));
    state = y * 2;
    cache.push_back(y);
    return y;
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Writer);
struct WritersImpl : torch::nn::Module {
  WritersImpl()
      : a(register_module("a", Unit<Writer>())), b(register_module("b", Unit<Writer>())) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor state = x;
    std::vector<at::Tensor> cache = {x};
    const at::Tensor y = b(a(x, state, cache), state, cache);
    TORCH_CHECK(cache.size() == 3 && cache[0].is_same(x));
    return y + state + cache[1] + cache[2] + cache[0];
  }
  Unit<Writer> a;
  Unit<Writer> b;
};
TORCH_MODULE(Writers);

TEST(LibraryUser, ArgumentsThatForwardWrites) {
  expect_equals_plain(builder<Writers>(), kSquares);
}

TEST(LibraryUser, ArgumentsThatForwardDoesNotWriteStayTheCallers) {
  auto model =
      fully_shard(builder<StackNet>()(), alone(), {.precision = {.param_dtype = at::kBFloat16}});
  at::Tensor x = odd_input(1).requires_grad_(true);
  const at::Tensor same = x;
  model(x);
  EXPECT_TRUE(x.is_same(same));
}

TEST(LibraryUser, ArgumentsThatACheckpointedForwardWrites) {
  auto model = fully_shard(builder<Writers>()(), alone(), with_checkpoints());
  expect_error([&] { model(odd_input(1)); }, ExitCode::Usage,
               {"[forward] unit 'a' is checkpointed and wrote a tensor of an argument"});
}

// ---- Checkpointed units ----

struct SpectralImpl : torch::nn::Module {
  SpectralImpl() : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) { return at::fft_rfft(linear(x)); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Spectral);

TEST(LibraryUser, ComplexOutputOfACheckpointedUnit) {
  const auto loss = [](auto& model, auto&, const Place& place) {
    return at::fft_irfft(model(input_of(place)), kOdd).square().sum();
  };
  expect_equals_plain(builder<Around<Spectral>>(), loss);
  expect_equals_plain(builder<Around<Spectral>>(), loss, with_checkpoints());
}

// Returns a parameter and a buffer of its own.
struct RevealingImpl : torch::nn::Module {
  RevealingImpl()
      : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))),
        table(register_buffer("table", at::ones({kOdd}))) {}
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    return {at::tanh(linear(x)), linear->weight, table};
  }
  torch::nn::Linear linear;
  at::Tensor table;
};
TORCH_MODULE(Revealing);
struct RevealedImpl : torch::nn::Module {
  RevealedImpl()
      : before(register_module("before", torch::nn::Linear(kOdd, kOdd))),
        unit(register_module("unit", Unit<Revealing>())) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto [y, weight, table] = unit(before(x));
    return at::linear(y, weight) + table;
  }
  torch::nn::Linear before;
  Unit<Revealing> unit;
};
TORCH_MODULE(Revealed);

TEST(LibraryUser, CheckpointedUnitThatReturnsItsOwnParameter) {
  for (const Strategy strategy : {Strategy::NoShard, Strategy::ShardGradOp}) {
    for (const int ranks : {1, 2}) {
      const PlainTrace trace = train_unsharded(builder<Revealed>(), kSquares, ranks);
      for (const bool again : {false, true}) {
        ShardOptions options = with_checkpoints(strategy);
        if (!again) {
          options.units = {};
        }
        run_ranks(ranks, [&](World world) {
          auto net = builder<Revealed>()();
          auto model = fully_shard(net, mesh_for(world, strategy), options);
          train_and_check(model, net, kSquares, trace);
        });
      }
    }
  }
}

// ---- Views of sharded parameters ----

/// Keeps a loss of its own in a member, and returns views.
struct KeepingImpl : torch::nn::Module {
  KeepingImpl() : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = linear(x);
    kept = y.square().mean();
    return y.view({-1, kOdd});
  }
  torch::nn::Linear linear;
  at::Tensor kept;
};
TORCH_MODULE(Keeping);

template <class Body>
void expect_sharded_use(const Body& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                testing::HasSubstr("of unit 'unit' was used while it was sharded"));
    return;
  }
  ADD_FAILURE() << "no error";
}

TEST(LibraryUser, BackwardOfALossInAMemberAlone) {
  run_ranks(2, [](World world) {
    auto net = builder<Around<Keeping>>()();
    auto model = fully_shard(net, Mesh::shard(world));
    model(odd_input(1));
    expect_sharded_use([&] { net->unit->kept.backward(); });
    net->unit->kept.reset();
    EXPECT_NO_THROW(model(odd_input(1)).sum().backward());
  });
}

TEST(LibraryUser, BackwardOfALossInAMemberOfAUnitThatStays) {
  const auto loss = [](auto& model, auto& net, const Place& place) {
    model(input_of(place));
    return net->unit->kept;
  };
  for (const Strategy strategy : {Strategy::NoShard, Strategy::ShardGradOp}) {
    for (const int ranks : {1, 2}) {
      const PlainTrace trace = train_unsharded(builder<Around<Keeping>>(), loss, ranks);
      run_ranks(ranks, [&](World world) {
        auto net = builder<Around<Keeping>>()();
        auto model = fully_shard(net, mesh_for(world, strategy), {.strategy = strategy});
        train_and_check(model, net, loss, trace);
      });
    }
  }
}

TEST(LibraryUser, OutputThatIsAViewWrittenInPlace) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(builder<Around<Keeping>>()(), Mesh::shard(world));
    at::Tensor y = model.run([](AroundImpl<Keeping>& net,
                                const at::Tensor& x) { return net.unit(net.before(x)).mul_(2); },
                             odd_input(1));
    expect_sharded_use([&] { y.square().sum().backward(); });
  });
  const auto loss = [](auto& model, auto&, const Place& place) {
    return model(input_of(place)).mul_(2).square().sum();
  };
  expect_equals_plain(builder<Around<Keeping>>(), loss, with_checkpoints());
}

struct LeakyImpl : torch::nn::Module {
  LeakyImpl() : linear(register_module("linear", torch::nn::Linear(kOdd, kOdd))) {}
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    return {linear(x), linear->weight.t(), linear->weight.detach(), linear->weight};
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Leaky);
struct LeakyNetImpl : torch::nn::Module {
  LeakyNetImpl() : unit(register_module("unit", Unit<Leaky>())) {}
  std::vector<at::Tensor> forward(const at::Tensor& x) { return unit(x); }
  Unit<Leaky> unit;
};
TORCH_MODULE(LeakyNet);

TEST(LibraryUser, ViewsOfParametersUsedOutside) {
  run_ranks(2, [](World world) {
    for (const bool again : {false, true}) {
      auto model = fully_shard(builder<LeakyNet>()(), Mesh::shard(world),
                               again ? with_checkpoints() : ShardOptions());
      const auto outputs = model(odd_input(1));
      for (const size_t i : {1U, 2U, 3U}) {
        expect_sharded_use([&] { outputs[i].sum(); });
      }
    }
  });
}

// ---- Optimizers, parameters, states ----

TEST(LibraryUser, ZeroGradOfOneOptimizerLeavesThoseOfAnother) {
  const auto named = [](const std::string& name) {
    return AdamWMode{.contains = [name](const std::string& parameter) {
      return parameter.find(name) != std::string::npos;
    }};
  };
  for (const Strategy strategy : kStrategies) {
    run_ranks(2, [&](World world) {
      auto plain = builder<StackNet>()();
      auto model =
          fully_shard(builder<StackNet>()(), mesh_for(world, strategy), {.strategy = strategy});
      AdamW often(model, {.lr = 1e-2}, {}, named("weight"));
      AdamW seldom(model, {.lr = 1e-2}, {}, named("bias"));
      std::vector<at::Tensor> weights;
      std::vector<at::Tensor> biases;
      for (const auto& item : plain->named_parameters()) {
        (item.key().find("weight") != std::string::npos ? weights : biases).push_back(item.value());
      }
      torch::optim::AdamW plain_often(weights, torch::optim::AdamWOptions(1e-2));
      torch::optim::AdamW plain_seldom(biases, torch::optim::AdamWOptions(1e-2));
      for (int step = 0; step < 6; ++step) {
        plain(odd_input(step)).square().sum().backward();
        model(odd_input(step)).square().sum().backward();
        plain_often.step();
        often.step();
        plain_often.zero_grad();
        often.zero_grad();
        if (step % 2 == 1) {
          plain_seldom.step();
          seldom.step();
          plain_seldom.zero_grad();
          seldom.zero_grad();
        }
        for (const ParameterShard& shard : model.parameter_shards()) {
          check_part(shard, shard.value, plain->named_parameters()[shard.name].detach(),
                     "the value", step);
        }
      }
    });
  }
}

TEST(LibraryUser, ParametersRegisteredAfterSharding) {
  run_ranks(2, [](World world) {
    auto net = builder<StackNet>()();
    auto model = fully_shard(net, Mesh::shard(world));
    EXPECT_NO_THROW(static_cast<void>(full_state_dict(model)));
    net->layers[1]->register_parameter("late", at::ones({2}));
    const std::vector<std::string> parts = {
        "parameter 'layer1.late' was registered after fully_shard()",
        "Register it before fully_shard()."};
    expect_error([&] { static_cast<void>(full_state_dict(model)); }, ExitCode::Usage, parts);
    expect_error([&] { static_cast<void>(sharded_state_dict(model)); }, ExitCode::Usage, parts);
    expect_error([&] { AdamW optimizer(model); }, ExitCode::Usage, parts);
  });
}

struct SharingImpl : torch::nn::Module {
  SharingImpl() {
    const at::Tensor flat = at::randn({2 * kOdd});
    register_parameter("first", flat.narrow(0, 0, kOdd));
    register_parameter("second", flat.narrow(0, kOdd, kOdd));
  }
  at::Tensor forward(const at::Tensor& x) { return x * parameters()[0]; }
};
TORCH_MODULE(Sharing);

TEST(LibraryUser, ParametersThatShareStorage) {
  EXPECT_NO_THROW(fully_shard(Sharing(), alone()));  // parts of one tensor that do not overlap
  for (const bool meta : {false, true}) {
    const auto build = [] {
      Sharing net;
      net->register_parameter("third", net->parameters()[1].detach());
      return net;
    };
    expect_error([&] { fully_shard(meta ? on_meta(build) : build(), alone()); }, ExitCode::Usage,
                 {"[fully_shard] parameters 'second' and 'third' share memory",
                  "register one tensor under both names"});
  }
}

// ---- Autocast ----

TEST(LibraryUser, AutocastWithCheckpointing) {
  run_ranks(2, [](World world) {
    std::vector<std::vector<at::Tensor>> outcomes;
    for (const bool again : {false, true}) {
      auto model =
          fully_shard(make_net(), Mesh::shard(world), again ? with_checkpoints() : ShardOptions());
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const at::Tensor y = model(make_example(world.rank()).x);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      y.to(at::kFloat).square().sum().backward();
      auto& gradients = outcomes.emplace_back();
      for (const ParameterShard& shard : model.parameter_shards()) {
        gradients.push_back(shard.gradient.clone());
      }
    }
    for (size_t i = 0; i < outcomes[0].size(); ++i) {
      EXPECT_TRUE(at::equal(outcomes[0][i], outcomes[1][i])) << "parameter " << i;
    }
  });
}

}  // namespace
}  // namespace sherd::test
