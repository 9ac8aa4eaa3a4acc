// Whole state dicts and pieces of them: the same bits as the unsharded state, from any number of
// ranks to any number of ranks, or an error that lists what is wrong.

#include "sherd/state_dict.h"

#include <limits>
#include <mutex>
#include <stdexcept>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/step/step.h"
#include "tests/support/buffered_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/meshes.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/whole_state.h"

namespace sherd::test {
namespace {

/// Units, a tied parameter, a frozen one, and buffers.
struct MixedNetImpl : torch::nn::Module {
  MixedNetImpl()
      : tied(register_module("tied", TiedNet(TiedNetImpl::Where::RootAndUnit))),
        body(register_module("body", BufferedNet())) {
    tied->second->own->weight.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) { return body(tied(x)); }
  TiedNet tied;
  BufferedNet body;
};
TORCH_MODULE(MixedNet);

MixedNet make_mixed(uint64_t seed) {
  return seeded(seed, [] { return MixedNet(); });
}

const ShardOptions kBFloat16Options{.precision = {.param_dtype = at::kBFloat16}};

template <class Model>
void train(Model& model, AdamW& optimizer, int steps, int first_input = 0) {
  for (int step = 0; step < steps; ++step) {
    model(odd_input(first_input + step)).square().sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

// Throws unless the dict is that of a plain module of these values, names in its order.
void check_dict(const StateDict& dict, const torch::nn::Module& plain) {
  WholeState expected = states_of(plain);
  TORCH_CHECK(dict.size() == expected.size(), dict.size(), " names of ", expected.size());
  for (const auto& item : dict) {
    const at::Tensor& whole = expected.at(item.key());
    TORCH_CHECK(same_bits(item.value().reshape({-1}), whole), item.key(), " differs");
  }
  const auto shapes_equal = [&](const auto& named) {
    for (const auto& item : named) {
      TORCH_CHECK(dict[item.key()].sizes() == item.value().sizes(), item.key(), ": shape");
    }
  };
  shapes_equal(plain.named_parameters());
  shapes_equal(plain.named_buffers());
}

void check_full_dict(const World& world) {
  const MixedNet plain = make_mixed(3);
  auto model = fully_shard(make_mixed(3), Mesh::shard(world));
  const StateDict on_rank0 = full_state_dict(model);
  if (world.rank() == 0) {
    check_dict(on_rank0, *plain);
    TORCH_CHECK(on_rank0["tied.head"].is_same(on_rank0["tied.first.weight"]),
                "tied names have a tensor each");
  } else {
    TORCH_CHECK(on_rank0.is_empty(), "rank ", world.rank(), " was given tensors");
  }
  check_dict(full_state_dict(model, {.rank0_only = false}), *plain);
}

TEST(FullStateDict, IsThatOfTheUnshardedModel) {
  for (const int ranks : {1, 2, 3, 4}) {
    EXPECT_NO_THROW(run_ranks(ranks, check_full_dict)) << ranks << " ranks";
  }
}

TEST(FullStateDict, IsTheSameFromProcesses) {
  EXPECT_EQ(run_processes(3, check_full_dict), (std::vector<int>{0, 0, 0}));
}

TEST(FullStateDict, ComesInTheOrderOfRegistration) {
  auto model = fully_shard(make_net(1), Mesh::shard(World::alone()));
  EXPECT_THAT(full_state_dict(model).keys(),
              testing::ElementsAre("input.weight", "input.bias", "head.weight", "head.bias",
                                   "block0.up.weight", "block0.up.bias", "block0.down.weight",
                                   "block0.down.bias"));
}

TEST(FullStateDict, HasTheDtypesFromBeforeShardingUnlessToldOtherwise) {
  run_ranks(2, [](World world) {
    auto net = make_mixed(3);
    net->tied->to(at::kBFloat16);
    auto model = fully_shard(net, Mesh::shard(world), kBFloat16Options);
    const auto dtypes = [&](const FullStateOptions& options) {
      std::map<std::string, at::ScalarType> found;
      for_each_full_parameter(
          model, [&](const FullParameter& p) { found[p.name] = p.value.scalar_type(); }, options);
      return found;
    };
    auto own = dtypes({.rank0_only = false});
    EXPECT_EQ(own.at("tied.head"), at::kBFloat16);
    EXPECT_EQ(own.at("body.body.linear.weight"), at::kFloat);
    EXPECT_EQ(own.at("body.shift"), at::kFloat);
    EXPECT_EQ(own.at("body.body.norm.num_batches_tracked"), at::kLong);
    auto halves = dtypes({.rank0_only = false, .dtype = at::kHalf});
    EXPECT_EQ(halves.at("tied.head"), at::kHalf);
    EXPECT_EQ(halves.at("body.shift"), at::kHalf);
    EXPECT_EQ(halves.at("body.body.norm.num_batches_tracked"), at::kLong);
  });
}

TEST(FullStateDict, OfABFloat16ModelHasTheMastersBits) {
  run_ranks(3, [](World world) {
    auto model = fully_shard(make_mixed(3), Mesh::shard(world), kBFloat16Options);
    AdamW optimizer(model, {.lr = 1e-2});
    train(model, optimizer, 2);
    const StateDict dict = full_state_dict(model, {.rank0_only = false});
    for (const ParameterShard& shard : model.parameter_shards()) {
      const at::Tensor part =
          dict[shard.name].reshape({-1}).narrow(0, shard.begin, shard.end - shard.begin);
      EXPECT_TRUE(at::equal(part, shard.value.to(at::kFloat))) << shard.name;
    }
  });
}

TEST(FullStateDict, NamesWhatItCannotGive) {
  auto unfilled = fully_shard(on_meta([] { return Net(); }), Mesh::shard(World::alone()));
  expect_error([&] { static_cast<void>(full_state_dict(unfilled)); }, ExitCode::Usage,
               {"[full_state_dict] parameter 'input.weight' was built on the meta device and has "
                "no values"});
  auto model = fully_shard(make_net(), Mesh::shard(World::alone()));
  expect_error([&] { static_cast<void>(full_state_dict(model, {.dtype = at::kLong})); },
               ExitCode::Usage,
               {"[full_state_dict] dtype is floating-point, or unset for each tensor's own; got "
                "Long."});
}

// A model of any number of ranks and its optimizer, trained a little.
template <class Body>
void on_each_rank(int ranks, const ShardOptions& options, const Body& body) {
  run_ranks(ranks, [&](World world) {
    auto model = fully_shard(make_mixed(3), Mesh::shard(world), options);
    AdamW optimizer(model, {.lr = 1e-2});
    body(model, optimizer);
  });
}

// Whole values and moments, to be compared between runs.
struct Everything {
  StateDict values;
  OptimStateDict moments;
};

template <class Model>
Everything everything_of(Model& model, const AdamW& optimizer) {
  return {full_state_dict(model), full_optim_state_dict(model, optimizer)};
}

void expect_equal(const Everything& a, const Everything& b) {
  ASSERT_EQ(a.values.keys(), b.values.keys());
  ASSERT_EQ(a.moments.keys(), b.moments.keys());
  for (const auto& item : a.values) {
    EXPECT_TRUE(same_bits(item.value(), b.values[item.key()])) << item.key();
  }
  for (const auto& item : a.moments) {
    const OptimState& other = b.moments[item.key()];
    EXPECT_TRUE(same_bits(item.value().exp_avg, other.exp_avg)) << item.key();
    EXPECT_TRUE(same_bits(item.value().exp_avg_sq, other.exp_avg_sq)) << item.key();
    EXPECT_EQ(item.value().step, other.step) << item.key();
  }
}

class StateWorlds : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(StateWorlds, FullStateComesBackOnAnyNumberOfRanks) {
  const auto [saved_by, loaded_by] = GetParam();
  for (const ShardOptions& options : {ShardOptions{}, kBFloat16Options}) {
    Everything saved;
    on_each_rank(saved_by, options, [&](auto& model, AdamW& optimizer) {
      train(model, optimizer, 3);
      Everything mine = everything_of(model, optimizer);
      if (model.world().rank() == 0) {
        saved = std::move(mine);
      }
    });
    EXPECT_EQ(saved.moments["tied.head"].step, 3);
    EXPECT_FALSE(saved.moments.contains("tied.second.own.weight"));  // frozen
    on_each_rank(loaded_by, options, [&](auto& model, AdamW& optimizer) {
      train(model, optimizer, 1, 50);  // what was there before must not matter
      const bool first = model.world().rank() == 0;
      load_full_state_dict(model, first ? saved.values : StateDict());
      load_full_optim_state_dict(model, optimizer, first ? saved.moments : OptimStateDict());
      EXPECT_EQ(optimizer.steps_done(), 3);
      const Everything loaded = everything_of(model, optimizer);
      if (first) {
        expect_equal(saved, loaded);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, StateWorlds,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(1, 2, 3, 4)));

// Under strategies that keep parameters from forward to backward, too.
TEST(FullStateDict, BetweenForwardAndBackwardChangesNoGradient) {
  for (const Strategy strategy : kStrategies) {
    run_ranks(4, [&](World world) {
      const auto gradients = [&](bool with_dict) {
        auto model = fully_shard(make_mixed(3), mesh_for(world, strategy), {.strategy = strategy});
        const at::Tensor loss = model(odd_input(world.rank())).square().sum();
        if (with_dict) {
          const StateDict dict = full_state_dict(model);
        }
        loss.backward();
        std::vector<at::Tensor> found;
        for (const ParameterShard& shard : model.parameter_shards()) {
          found.push_back(shard.trainable ? shard.gradient.clone() : at::zeros({1}));
        }
        return found;
      };
      const auto expected = gradients(false);
      const auto actual = gradients(true);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(expected[i], actual[i])) << name_of(strategy) << ", " << i;
      }
    });
  }
}

// The norm that was taken while gradients were added up stays known, so that clipping reads
// nothing.
TEST(StateDicts, ShowNoGradients) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_mixed(3), Mesh::shard(world));
    AdamW optimizer(model, {.lr = 1e-2});
    model(odd_input(world.rank())).square().sum().backward();
    const double infinity = std::numeric_limits<double>::infinity();
    const auto norm = clip_grad_norm(model, infinity).item<double>();
    const ShardedStateDict pieces = sharded_state_dict(model);
    const StateDict whole = full_state_dict(model);
    EXPECT_FALSE(pieces["body.body.linear.weight"].gradient.defined());
    for (const auto& unit : detail::engine_of(model).model.units) {
      for (const auto& segment : unit->segments()) {
        if (segment->has_gradient()) {
          segment->gradient().zero_();
        }
      }
    }
    EXPECT_EQ(clip_grad_norm(model, infinity).item<double>(), norm);
    static_cast<void>(model.parameter_shards());
    EXPECT_EQ(clip_grad_norm(model, infinity).item<double>(), 0);
  });
}

TEST(ShardedStateDict, TakenOnceShowsTheValuesOfEachLaterStep) {
  run_ranks(3, [](World world) {
    auto model = fully_shard(make_mixed(3), Mesh::shard(world));
    AdamW optimizer(model, {.lr = 1e-2});
    const ShardedStateDict cached = sharded_state_dict(model);
    for (int step = 0; step < 5; ++step) {
      train(model, optimizer, 1, step);
      const ShardedStateDict now = sharded_state_dict(model);
      for (const auto& item : cached) {
        EXPECT_TRUE(at::equal(item.value().value, now[item.key()].value)) << item.key();
      }
    }
  });
}

TEST(FullStateDict, LetsTrainingGoOnAsIfNothingHadHappened) {
  on_each_rank(3, kBFloat16Options, [](auto& model, AdamW& optimizer) {
    train(model, optimizer, 2);
    const Everything saved = everything_of(model, optimizer);
    train(model, optimizer, 2, 2);
    const Everything expected = everything_of(model, optimizer);
    load_full_state_dict(model, saved.values);
    load_full_optim_state_dict(model, optimizer, saved.moments);
    train(model, optimizer, 2, 2);
    const Everything again = everything_of(model, optimizer);
    if (model.world().rank() == 0) {
      expect_equal(expected, again);
    }
  });
}

TEST(FullStateDict, ThatDoesNotFitIsRefusedOnEveryRankAndChangesNothing) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(make_mixed(3), Mesh::shard(world));
    AdamW optimizer(model);
    train(model, optimizer, 1);
    const Everything before = everything_of(model, optimizer);
    StateDict wrong;
    OptimStateDict wrong_moments;
    const at::Tensor moment = at::zeros({kOdd});
    if (world.rank() == 0) {
      for (const auto& item : before.values) {
        if (item.key() != "body.body.linear.bias") {
          wrong.insert(item.key(), item.value() + 1);
        }
      }
      wrong["tied.second.weight"] = at::ones({kOdd});
      wrong["tied.head"] = at::ones({kOdd, kOdd});
      wrong.insert("lora.weight", at::ones({1}));
      for (const auto& item : before.moments) {
        if (item.key() != "tied.head" && item.key() != "tied.first.weight") {
          wrong_moments.insert(item.key(), item.value());
        }
      }
      wrong_moments["body.body.linear.weight"].exp_avg_sq = moment;
      wrong_moments["body.body.linear.bias"].step = -7;
      wrong_moments.insert("tied.second.own.weight", {moment, moment, 1});
    }
    expect_error([&] { load_full_state_dict(model, wrong); }, ExitCode::BadData,
                 {"[load_full_state_dict] loading failed, rank 0: the state is not that of this "
                  "model:",
                  "\n  'tied.first.weight' is tied to 'tied.head', and has other values",
                  "\n  parameter 'tied.second.weight' has shape [7, 7] in the model, and [7] was "
                  "given",
                  "\n  parameter 'body.body.linear.bias' is missing",
                  "\n  'lora.weight' is unknown to the model"});
    expect_error([&] { load_full_optim_state_dict(model, optimizer, wrong_moments); },
                 ExitCode::BadData,
                 {"[load_full_optim_state_dict] loading failed, rank 0: the state is not that of "
                  "this optimizer:",
                  "\n  the state of parameter 'tied.head' is missing",
                  "\n  a moment of parameter 'body.body.linear.weight' has shape [7, 7] in the "
                  "model, and [7] was given",
                  "\n  'body.body.linear.bias' has done -7 steps",
                  "\n  'tied.second.own.weight' is not a trainable parameter of the model"});
    const Everything after = everything_of(model, optimizer);
    if (world.rank() == 0) {
      expect_equal(before, after);
    }
  });
}

TEST(ShardedStateDict, IsTheLiveStateUnderAllItsNames) {
  run_ranks(3, [](World world) {
    auto model = fully_shard(make_mixed(3), Mesh::shard(world));
    AdamW optimizer(model, {.lr = 1e-2});
    const ShardedStateDict dict = sharded_state_dict(model);
    const WholeState names = states_of(*make_mixed(3));
    EXPECT_EQ(dict.size(), names.size());
    for (const auto& [name, tensor] : names) {
      ASSERT_TRUE(dict.contains(name)) << name;
    }
    EXPECT_EQ(dict["tied.first.weight"].name, "tied.head");
    EXPECT_EQ(dict["body.shift"].end, 3 * kOdd);
    for (const ParameterShard& shard : model.parameter_shards()) {
      EXPECT_EQ(dict[shard.name].value.const_data_ptr(), shard.value.const_data_ptr());
    }
    train(model, optimizer, 2);
    for (const ParameterShard& shard : model.parameter_shards()) {
      EXPECT_TRUE(at::equal(dict[shard.name].value, shard.value)) << shard.name;
    }
    EXPECT_EQ(dict["body.body.norm.num_batches_tracked"].value.item<int64_t>(), 2);
  });
}

// The pieces of each rank of a model with values of this seed, copied.
std::vector<std::vector<ParameterShard>> pieces_of(int ranks, uint64_t seed) {
  std::vector<std::vector<ParameterShard>> pieces(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](World world) {
    auto model = fully_shard(make_mixed(seed), Mesh::shard(world));
    for (const auto& item : sharded_state_dict(model)) {
      ParameterShard piece = item.value();
      piece.value = piece.value.clone();
      pieces[static_cast<size_t>(world.rank())].push_back(std::move(piece));
    }
  });
  return pieces;
}

void check_loaded_pieces(const World& world,
                         const std::vector<std::vector<ParameterShard>>& pieces) {
  for (const ShardOptions& options : {ShardOptions{}, kBFloat16Options}) {
    auto net = make_mixed(20 + static_cast<uint64_t>(world.rank()));
    auto model = fully_shard(net, Mesh::shard(world), options);
    std::vector<ParameterShard> mine;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i % static_cast<size_t>(world.size()) == static_cast<size_t>(world.rank())) {
        mine.insert(mine.end(), pieces[i].begin(), pieces[i].end());
      }
    }
    load_sharded_state_dict(model, mine);
    WholeState expected = states_of(*make_mixed(3));
    if (options.precision.param_dtype) {
      at::Tensor& frozen = expected["tied.second.own.weight"];
      frozen = frozen.to(at::kBFloat16);
    }
    check_same_bits(model, expected);
    for (const auto& item : net->named_buffers()) {
      TORCH_CHECK(same_bits(item.value().reshape({-1}), expected.at(item.key())), item.key());
    }
    auto plain = fully_shard(make_mixed(3), Mesh::shard(World::alone()), options);
    TORCH_CHECK(at::equal(model(odd_input(1)), plain(odd_input(1))), "not published");
  }
}

TEST_P(StateWorlds, PiecesOfAnyCutFindTheirPlaces) {
  const auto [saved_by, loaded_by] = GetParam();
  const auto pieces = pieces_of(saved_by, 3);
  EXPECT_NO_THROW(run_ranks(loaded_by, [&](World world) { check_loaded_pieces(world, pieces); }));
}

TEST(ShardedStateDict, OfAnyCutFindsItsPlacesInProcesses) {
  // Threads of this process have ended when the ranks are forked.
  const auto pieces = pieces_of(4, 3);
  EXPECT_EQ(run_processes(3, [&](World world) { check_loaded_pieces(world, pieces); }),
            (std::vector<int>{0, 0, 0}));
}

TEST(ShardedStateDict, OfOverlappingPiecesTakesTheLowestRanks) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(torch::nn::Linear(4, 25), Mesh::shard(world));
    const auto piece = [&](const std::string& name, std::vector<int64_t> shape, int64_t begin,
                           int64_t end) {
      return ParameterShard{name,
                            std::move(shape),
                            at::kFloat,
                            true,
                            begin,
                            end,
                            at::full({end - begin}, 1.0 + world.rank()),
                            {}};
    };
    const bool first = world.rank() == 0;
    load_sharded_state_dict(
        model, {first ? piece("weight", {25, 4}, 0, 60) : piece("weight", {25, 4}, 40, 100),
                piece("bias", {25}, 0, 25)});
    at::Tensor weight = at::full({100}, 1.0);
    weight.narrow(0, 60, 40).fill_(2.0);
    check_same_bits(model, {{"weight", weight}, {"bias", at::full({25}, 1.0)}});
  });
}

// Also where a higher rank gave it.
TEST(ShardedStateDict, OfOverlappingPiecesTakesThatWhichBeginsFirst) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(torch::nn::Linear(torch::nn::LinearOptions(4, 25).bias(false)),
                             Mesh::shard(world));
    const bool first = world.rank() == 0;
    const int64_t begin = first ? 40 : 0;
    const int64_t end = first ? 100 : 60;
    load_sharded_state_dict(model, {ParameterShard{"weight",
                                                   {25, 4},
                                                   at::kFloat,
                                                   true,
                                                   begin,
                                                   end,
                                                   at::full({end - begin}, 1.0 + world.rank()),
                                                   {}}});
    at::Tensor weight = at::full({100}, 2.0);
    weight.narrow(0, 60, 40).fill_(1.0);
    check_same_bits(model, {{"weight", weight}});
  });
}

TEST(ShardedStateDict, ThatDoesNotFitIsRefusedOnEveryRankAndChangesNothing) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(torch::nn::Linear(4, 25), Mesh::shard(world));
    const at::Tensor before = full_state_dict(model, {.rank0_only = false})["weight"];
    std::vector<ParameterShard> pieces;
    for (const auto& item : sharded_state_dict(model)) {
      pieces.push_back(item.value());
      pieces.back().value = pieces.back().value + 1;
    }
    const auto refused = [&](const std::function<void(ParameterShard&)>& change,
                             const std::string& what) {
      std::vector<ParameterShard> wrong = pieces;
      if (world.rank() == 1) {
        change(wrong.front());
      }
      expect_error([&] { load_sharded_state_dict(model, wrong); }, ExitCode::BadData, {what});
    };
    const std::string fit_nothing =
        "[load_sharded_state_dict] loading failed, rank 1: these pieces fit no part of this "
        "model:\n  ";
    refused([](auto& piece) { piece.name = "other"; },
            fit_nothing + "'other' is unknown to the model");
    refused([](auto& piece) { piece.shape = {100}; },
            fit_nothing + "'weight' has shape [25, 4] in the model, and [100] was given");
    refused([](auto& piece) { piece.end = 101; },
            fit_nothing + "'weight' has 100 elements, and elements [80, 101) were given as 20");
    refused([](auto& piece) { piece.value = at::zeros({20}, at::kLong); },
            fit_nothing + "'weight' is Float in the model, and Long was given");
    refused(
        [](auto& piece) {
          piece.begin = 85;
          piece.end = 95;
          piece.value = piece.value.narrow(0, 0, 10);
        },
        "[load_sharded_state_dict] the pieces of all ranks leave gaps:\n  parameter 'weight': "
        "elements [80, 85) are in no piece\n  parameter 'weight': elements [95, 100) are in no "
        "piece");
    EXPECT_TRUE(at::equal(full_state_dict(model, {.rank0_only = false})["weight"], before));
  });
}

}  // namespace
}  // namespace sherd::test
