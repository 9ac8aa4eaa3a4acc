// How a model that has no values yet gets them: random ones that no cut changes, rank 0's, and
// buffers. The bits are those of a model that was never sharded.

#include <cmath>
#include <set>
#include <stdexcept>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sherd/state_dict.h"
#include "tests/support/allocated_bytes.h"
#include "tests/support/buffered_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/meshes.h"
#include "tests/support/odd_nets.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/whole_state.h"

namespace sherd::test {
namespace {

constexpr uint64_t kSeed = 1234567890123;

// Every way to fill, chosen by name.
void fill(ParameterInit& init) {
  if (init.name().ends_with("down.weight")) {
    init.fill_kaiming_uniform(std::sqrt(5.0));
  } else if (init.name().ends_with("weight")) {
    init.fill_normal(0.1, 0.3);
  } else if (init.name() == "head.bias") {
    init.fill_constant(0.25);
  } else if (init.name() == "input.bias") {
    init.fill_from(at::arange(13, at::kFloat));
  } else {
    init.fill_uniform(-0.5, 0.5);
  }
}

/// The small net without units: the same names in one unit.
struct OneUnitNetImpl : torch::nn::Module {
  OneUnitNetImpl()
      : input(register_module("input", torch::nn::Linear(5, 13))),
        head(register_module("head", torch::nn::Linear(13, 3))) {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(13)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = input(x);
    for (auto& block : blocks) {
      hidden = block(hidden);
    }
    return head(hidden);
  }
  torch::nn::Linear input;
  std::vector<Block> blocks;
  torch::nn::Linear head;
};
TORCH_MODULE(OneUnitNet);

WholeState initialized_alone() {
  auto model = fully_shard(on_meta([] { return Net(); }), alone());
  initialize(model, kSeed, fill);
  return masters_of(model);
}

// On meta and not, with units and without, with all precisions.
void check_initialized(const World& world) {
  const WholeState expected = initialized_alone();
  for (const bool bfloat16 : {false, true}) {
    ShardOptions options;
    if (bfloat16) {
      options.precision.param_dtype = at::kBFloat16;
    }
    auto model = fully_shard(on_meta([] { return Net(); }), Mesh::shard(world), options);
    initialize(model, kSeed, fill);
    check_same_bits(model, expected);
    auto one_unit = fully_shard(on_meta([] { return OneUnitNet(); }), Mesh::shard(world), options);
    initialize(one_unit, kSeed, fill);
    check_same_bits(one_unit, expected);
    const at::Tensor output = model(make_example(1).x);
    TORCH_CHECK(
        at::equal(output, one_unit(make_example(1).x)) && output.count_nonzero().item<int>() > 0,
        "the values were not published");
    auto with_values = fully_shard(make_net(), Mesh::shard(world), options);
    initialize(with_values, kSeed, fill);
    check_same_bits(with_values, expected);
  }
}

TEST(Initialize, GivesTheSameBitsOnAnyWorldSizeAndWithAnyUnits) {
  for (const int ranks : {1, 2, 3, 4}) {
    EXPECT_NO_THROW(run_ranks(ranks, check_initialized)) << ranks << " ranks";
  }
}

TEST(Initialize, GivesTheSameBitsInProcesses) {
  EXPECT_EQ(run_processes(3, check_initialized), (std::vector<int>{0, 0, 0}));
}

TEST(Initialize, FillsWhatIsAskedFor) {
  WholeState state = initialized_alone();
  EXPECT_TRUE(at::equal(state["head.bias"], at::full({3}, 0.25)));
  EXPECT_TRUE(at::equal(state["input.bias"], at::arange(13, at::kFloat)));
  const double bound = 1 / std::sqrt(19.0);  // what torch::nn::Linear(19, …) starts within
  const double most = state["block0.down.weight"].abs().max().item<double>();
  EXPECT_LE(most, bound);
  EXPECT_GE(most, 0.9 * bound);
  EXPECT_NEAR(state["block1.up.weight"].mean().item<double>(), 0.1, 0.1);
  EXPECT_NEAR(state["block1.up.weight"].std().item<double>(), 0.3, 0.1);
  EXPECT_FALSE(at::equal(state["block0.up.weight"], state["block1.up.weight"]));
}

TEST(Initialize, KeepsWhatIsLeftAlone) {
  const Net plain = make_net();
  auto model = fully_shard(make_net(), alone());
  initialize(model, kSeed, [](ParameterInit& init) {
    if (init.name() == "head.bias") {
      init.fill_constant(7);
    }
  });
  WholeState state = masters_of(model);
  EXPECT_TRUE(at::equal(state["head.bias"], at::full({3}, 7.0)));
  EXPECT_TRUE(at::equal(state["head.weight"], plain->head->weight.detach().reshape({-1})));
}

TEST(Initialize, ListsWhatWasNotFilled) {
  run_ranks(2, [](World world) {
    auto model = fully_shard(on_meta([] { return Net(); }), Mesh::shard(world));
    const auto only_weights = [](ParameterInit& init) {
      if (init.name().ends_with("weight")) {
        init.fill_normal(0, 1);
      }
    };
    expect_error([&] { initialize(model, 1, only_weights); }, ExitCode::Usage,
                 {"[initialize] these have no values (they were built on the meta device, or an "
                  "operation has left them torn), and no function filled them:"
                  "\n  parameter 'input.bias'\n  parameter 'head.bias'\n  parameter "
                  "'block0.up.bias'",
                  "Call one of the fill functions for each"});
    expect_error([&] { model(make_example(1).x); }, ExitCode::Usage, {"torn: initialize"});
  });
}

TEST(Initialize, RefusesWhatCannotBeDrawn) {
  auto model = fully_shard(make_net(), alone());
  const auto refused = [&](const ParamInitFn& fn, const std::string& what) {
    const auto first_only = [&](ParameterInit& init) {
      if (init.name() == "input.bias") {
        fn(init);
      }
    };
    expect_error([&] { initialize(model, 1, first_only); }, ExitCode::Usage,
                 {"[initialize] parameter 'input.bias' " + what});
  };
  refused([](auto& init) { init.fill_normal(0, -1); },
          "cannot have the standard deviation -1.000000: it is 0 or more.");
  refused([](auto& init) { init.fill_normal(0, std::nan("")); },
          "cannot have the standard deviation nan");
  refused([](auto& init) { init.fill_uniform(1, 0); },
          "cannot be uniform over [1.000000, 0.000000): the first number is the lower one.");
  refused([](auto& init) { init.fill_kaiming_uniform(); },
          "has 1 dimensions and so no fan-in: give its range itself.");
  refused([](auto& init) { init.fill_from(at::arange(3)); },
          "has shape [13], and what it is to be filled from [3].");
  refused([](auto& init) { init.fill_from(at::Tensor()); },
          "has shape [13], and what it is to be filled from is undefined.");
}

TEST(Initialize, InsideAStepIsRefused) {
  auto model = fully_shard(make_net(), alone());
  const auto nothing = [](ParameterInit& /*init*/) {};
  const auto inside = [&](NetImpl& net, const at::Tensor& x) {
    initialize(model, 1, nothing);
    return net.input(x);
  };
  expect_error([&] { model.run(inside, make_example(1).x); }, ExitCode::Usage,
               {"[initialize] was called inside the forward of unit 'root': call it between "
                "steps."});
  at::Tensor output = model(make_example(1).x);
  output.register_hook([&](const at::Tensor&) { initialize(model, 1, nothing); });
  expect_error([&] { output.sum().backward(); }, ExitCode::Usage,
               {"[initialize] was called inside a backward: call it between steps."});
  EXPECT_NO_THROW(initialize(model, 1, nothing));
}

void check_buffers(const torch::nn::Module& net, const WholeState& expected) {
  for (const auto& item : net.named_buffers()) {
    TORCH_CHECK(same_bits(item.value().reshape({-1}), expected.at(item.key())), item.key(),
                " differs");
  }
}

TEST(Meta, BuffersAreInitialized) {
  run_ranks(2, [](World world) {
    BufferedNet plain = make_buffered(3);
    WholeState expected = states_of(*plain);
    auto net = on_meta([] { return BufferedNet(); });
    EXPECT_TRUE(net->shift.is_meta());
    auto model = fully_shard(net, Mesh::shard(world));
    const auto fill_parameter = [&](ParameterInit& init) {
      init.fill_from(expected.at(init.name()).view(init.shape()));
    };
    expect_error([&] { initialize(model, 1, fill_parameter); }, ExitCode::Usage,
                 {"no function filled them:\n  buffer 'shift'\n  buffer 'body.table'\n  buffer "
                  "'body.norm.running_mean'",
                  "buffers have a function of their own, buffer_init_fn."});
    std::set<std::string> names;
    initialize(model, 1, fill_parameter, [&](ParameterInit& init) {
      names.insert(init.name());
      init.fill_from(expected.at(init.name()).view(init.shape()));
    });
    EXPECT_THAT(names,
                testing::ElementsAre("body.norm.num_batches_tracked", "body.norm.running_mean",
                                     "body.norm.running_var", "body.table", "shift"));
    check_buffers(*net, expected);
    EXPECT_TRUE(at::equal(model(odd_input(1)), plain(odd_input(1))));
  });
}

TEST(Meta, BuffersThatNothingHasFilledAreRefused) {
  auto net = on_meta([] { return BufferedNet(); });
  auto model = fully_shard(net, alone());
  for (const ParameterShard& shard : model.parameter_shards()) {
    shard.value.zero_();
  }
  model.publish();
  for (int attempt = 0; attempt < 2; ++attempt) {
    expect_error([&] { model(odd_input(1)); }, ExitCode::Usage,
                 {"[forward] buffer 'shift' was built on the meta device and has no values",
                  "fill it in place, or call sherd::load_from_rank0(model, source) or "
                  "sherd::initialize(model, seed, param_init_fn, buffer_init_fn)"});
  }
  net->shift.zero_();
  expect_error([&] { model(odd_input(1)); }, ExitCode::Usage, {"buffer 'body.table'"});
  net->body->table.fill_(1);
  net->body->norm->running_mean.zero_();
  net->body->norm->running_var.fill_(1);
  net->body->norm->num_batches_tracked.zero_();
  EXPECT_NO_THROW(model(odd_input(1)));
}

TEST(Initialize, OfAWholeNumberedBufferIsNotRandom) {
  auto model = fully_shard(make_buffered(3), alone());
  const auto nothing = [](ParameterInit& /*init*/) {};
  const auto random = [](ParameterInit& init) {
    if (init.name() == "body.norm.num_batches_tracked") {
      init.fill_uniform(0, 1);
    }
  };
  expect_error([&] { initialize(model, 1, nothing, random); }, ExitCode::Usage,
               {"[initialize] buffer 'body.norm.num_batches_tracked' is Long, and random numbers "
                "are floating-point: use fill_constant or fill_from."});
}

// What rank 0 reads from, and how often it was asked for each name.
class PlainSource {
 public:
  explicit PlainSource(const torch::nn::Module& module) {
    for (const auto& item : module.named_parameters()) {
      tensors_[item.key()] = item.value();
    }
    for (const auto& item : module.named_buffers()) {
      tensors_[item.key()] = item.value();
    }
  }
  at::Tensor operator()(const std::string& name) {
    ++asked[name];
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? at::Tensor() : found->second;
  }
  std::map<std::string, at::Tensor>& tensors() { return tensors_; }
  std::map<std::string, int> asked;

 private:
  std::map<std::string, at::Tensor> tensors_;
};

at::Tensor not_to_be_asked(const std::string& name) {
  throw std::runtime_error("asked for " + name + " on another rank than 0");
}

void check_loaded_from_rank0(const World& world) {
  const BufferedNet plain = make_buffered(3);
  WholeState expected = states_of(*plain);
  for (const bool on_meta_device : {true, false}) {
    auto net = on_meta_device ? on_meta([] { return BufferedNet(); })
                              : make_buffered(10 + static_cast<uint64_t>(world.rank()));
    auto model = fully_shard(net, Mesh::shard(world));
    if (world.rank() == 0) {
      PlainSource source(*plain);
      load_from_rank0(model, std::ref(source));
      for (const auto& [name, times] : source.asked) {
        TORCH_CHECK(times == 1, name, " was read ", times, " times");
      }
    } else {
      load_from_rank0(model, not_to_be_asked);
    }
    check_same_bits(model, expected);
    check_buffers(*net, expected);
    const at::Tensor output = model(odd_input(1));
    TORCH_CHECK(at::equal(output, make_buffered(3)->forward(odd_input(1))), "another output");
  }
}

TEST(LoadFromRank0, GivesEveryRankItsPartAndAllBuffers) {
  for (const int ranks : {1, 2, 3, 4}) {
    EXPECT_NO_THROW(run_ranks(ranks, check_loaded_from_rank0)) << ranks << " ranks";
  }
}

TEST(LoadFromRank0, WorksInProcesses) {
  EXPECT_EQ(run_processes(3, check_loaded_from_rank0), (std::vector<int>{0, 0, 0}));
}

TEST(LoadFromRank0, ConvertsDtypesAndTakesTransposedTensors) {
  run_ranks(3, [](World world) {
    const Net plain = make_net();
    auto net = on_meta([] { return Net(); });
    net->head->weight.requires_grad_(false);  // frozen: held in bf16 alone
    auto model =
        fully_shard(net, Mesh::shard(world), {.precision = {.param_dtype = at::kBFloat16}});
    PlainSource source(*plain);
    source.tensors()["block0.up.weight"] = plain->blocks[0]->up->weight.to(at::kBFloat16);
    source.tensors()["block1.up.weight"] = plain->blocks[1]->up->weight.to(at::kDouble);
    source.tensors()["block2.up.weight"] = plain->blocks[2]->up->weight.t().contiguous().t();
    load_from_rank0(model, std::ref(source));
    WholeState expected = states_of(*plain);
    at::Tensor& rounded = expected["block0.up.weight"];
    rounded = rounded.to(at::kBFloat16).to(at::kFloat);
    expected["head.weight"] = expected["head.weight"].to(at::kBFloat16);
    check_same_bits(model, expected);
  });
}

TEST(LoadFromRank0, FindsATiedParameterByAnyOfItsNames) {
  run_ranks(2, [](World world) {
    const auto make = [] { return TiedNet(TiedNetImpl::Where::RootAndUnit); };
    const TiedNet plain = seeded(5, make);
    for (const char* only : {"head", "first.weight"}) {
      auto model = fully_shard(seeded(6, make), Mesh::shard(world));
      PlainSource source(*plain);
      source.tensors().erase(only == std::string("head") ? "first.weight" : "head");
      load_from_rank0(model, std::ref(source));
      check_same_bits(model, states_of(*plain));
    }
  });
}

TEST(LoadFromRank0, ListsEveryFaultOnEveryRank) {
  run_ranks(3, [](World world) {
    auto net = on_meta([] { return BufferedNet(); });
    auto model = fully_shard(net, Mesh::shard(world));
    PlainSource source(*make_buffered(3));
    source.tensors().erase("body.norm.bias");
    source.tensors()["body.linear.weight"] = at::ones({kOdd, kOdd + 1});
    source.tensors()["body.norm.weight"] = at::ones({kOdd}, at::kLong);
    source.tensors()["body.norm.num_batches_tracked"] = at::ones({});
    source.tensors()["body.norm.running_var"] = at::ones({kOdd}, at::kMeta);
    expect_error(
        [&] { load_from_rank0(model, std::ref(source)); }, ExitCode::BadData,
        {"[load_from_rank0] loading failed, rank 0: the tensors are not those of this model:\n  "
         "parameter 'body.linear.weight' has shape [7, 7] in the model, and [7, 8] was given\n  "
         "parameter 'body.norm.weight' is Float in the model, and Long was given\n  "
         "parameter 'body.norm.bias' is missing\n  "
         "buffer 'body.norm.running_var' was given on the meta device, without values\n  "
         "buffer 'body.norm.num_batches_tracked' is Long in the model, and Float was given"});
    EXPECT_THROW(model(odd_input(1)), Error);  // still without values
    PlainSource right(*make_buffered(3));
    load_from_rank0(model, std::ref(right));
    EXPECT_TRUE(at::equal(model(odd_input(1)), make_buffered(3)->forward(odd_input(1))));
  });
}

TEST(LoadFromRank0, TellsEveryRankThatTheSourceFailed) {
  run_ranks(3, [](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    const auto failing = [](const std::string& name) -> at::Tensor {
      if (name == "head.weight") {
        throw Error(ExitCode::StorageIo, "the disk is gone");
      }
      return make_net()->named_parameters()[name];
    };
    expect_error([&] { load_from_rank0(model, failing); }, ExitCode::StorageIo,
                 {"[load_from_rank0] loading failed, rank 0: the disk is gone"});
  });
}

constexpr int64_t kRows = 1000;
constexpr int64_t kTensorBytes = kRows * kRows * 4;

TEST(LoadFromRank0, HoldsOneTensorAtATime) {
  run_ranks(3, [](World world) {
    const auto make = [] {
      return torch::nn::Sequential(Unit<torch::nn::Linear>(kRows, kRows),
                                   Unit<torch::nn::Linear>(kRows, kRows));
    };
    auto model = fully_shard(on_meta(make), Mesh::shard(world));
    const auto source = [](const std::string& name) {
      return name.ends_with("weight") ? at::ones({kRows, kRows}) : at::ones({kRows});
    };
    const AllocatedBytes allocated;
    load_from_rank0(model, source);
    constexpr int64_t kSlack = 16 << 10;  // counters of the collectives
    EXPECT_LE(allocated.peak(), (world.rank() == 0 ? kTensorBytes : 1 << 20) + kSlack);
    EXPECT_GE(allocated.peak(), world.rank() == 0 ? kTensorBytes : 1 << 20);
  });
}

void check_synced(World world) {
  const BufferedNet plain = make_buffered(3);
  auto net = make_buffered(3 + static_cast<uint64_t>(world.rank()));
  net->body->linear->weight.set_data(net->body->linear->weight.t());  // not contiguous
  sync_module_states(*net, world);
  WholeState expected = states_of(*plain);
  expected["body.linear.weight"] = plain->body->linear->weight.t().reshape({-1});
  for (const auto& [name, tensor] : states_of(*net)) {
    TORCH_CHECK(same_bits(tensor, expected.at(name)), name, " differs");
  }
}

TEST(SyncModuleStates, GivesEveryRankTheValuesOfRank0) {
  for (const int ranks : {1, 2, 3, 4}) {
    EXPECT_NO_THROW(run_ranks(ranks, check_synced)) << ranks << " ranks";
  }
  EXPECT_EQ(run_processes(2, check_synced), (std::vector<int>{0, 0}));
}

TEST(SyncModuleStates, LetsAModelBuiltDifferentlyBeSharded) {
  run_ranks(3, [](World world) {
    const auto seed = static_cast<uint64_t>(7 + world.rank());  // 7 is make_net's
    Net net = seeded(seed, [] { return Net(); });
    sync_module_states(*net, world);
    auto model = fully_shard(net, Mesh::shard(world));
    check_same_bits(model, states_of(*make_net()));
  });
}

TEST(SyncModuleStates, NamesWhatCannotBeSent) {
  run_ranks(2, [](World world) {
    expect_error([&] { sync_module_states(*on_meta([] { return Net(); }), world); },
                 ExitCode::Usage,
                 {"[sync_module_states] parameter 'input.weight' is on the meta device: shard the "
                  "module, and give it rank 0's values by load_from_rank0."});
    Net net = make_net();
    auto model = fully_shard(net, Mesh::shard(world));
    expect_error([&] { sync_module_states(*net, world); }, ExitCode::Usage,
                 {"[sync_module_states] parameter 'input.weight' is sharded: call it before "
                  "fully_shard"});
    Net other = make_net(2 + world.rank());
    expect_error([&] { sync_module_states(*other, world); }, ExitCode::RanksDisagree,
                 {"[sync_module_states] ranks disagree. Rank 0 has nothing more; rank 1 has "
                  "parameter 'block2.up.weight': shape [19, 13], Float. Build the same module on "
                  "all ranks."});
  });
}

}  // namespace
}  // namespace sherd::test
