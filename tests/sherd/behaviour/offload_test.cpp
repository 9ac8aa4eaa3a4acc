// What rests on a disk: the same training, to the bit, in less memory.

#include <filesystem>
#include <optional>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "sherd/checkpoint.h"
#include "sherd/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/failing_files.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/train_small_net.h"

namespace sherd::test {
namespace {

/// Precisions, with what rests on the disk.
struct Mode {
  const char* name;
  Precision precision;
  AdamWMode optimizer;
};

const std::vector<Mode>& modes() {
  static const std::vector<Mode> all = {
      {"fp32", {}, {}},
      {"bf16", {.param_dtype = at::kBFloat16}, {}},
      {"halves", {.param_dtype = at::kBFloat16, .master = Master::Split}, {}},
      {"narrow moments", {.param_dtype = at::kBFloat16}, {.moments_dtype = at::kBFloat16}},
      {"in backward", {.param_dtype = at::kBFloat16}, {.in_backward = true}}};
  return all;
}

/// Which parts rest in a folder.
struct Part {
  const char* name;
  Offload (*in)(const std::string& folder);
};

const std::vector<Part>& parts() {
  static const std::vector<Part> all = {{"optimizer",
                                         [](const std::string& folder) {
                                           return Offload{folder, "", ""};
                                         }},
                                        {"gradients",
                                         [](const std::string& folder) {
                                           return Offload{"", folder, ""};
                                         }},
                                        {"parameters",
                                         [](const std::string& folder) {
                                           return Offload{"", "", folder};
                                         }},
                                        {"all", [](const std::string& folder) {
                                           return Offload{folder, folder, folder};
                                         }}};
  return all;
}

ShardOptions offload_options(const Mode& mode, const std::string& folder,
                             Strategy strategy = Strategy::FullShard,
                             const Part& part = parts().front()) {
  return {.strategy = strategy, .precision = mode.precision, .offload = part.in(folder)};
}

/// Values and moments after some steps, and what held them.
struct Trained {
  std::map<std::string, at::Tensor> tensors;
  std::map<MemoryKind, int64_t> resident_bytes;  ///< without what is in use
};

void put_states(Trained& trained, ShardedModule& model, const AdamW& optimizer) {
  for (const ParameterShard& shard : model.parameter_shards()) {
    trained.tensors["value " + shard.name] = shard.value.clone();
  }
  for (const MomentShard& moment : optimizer.moments()) {
    trained.tensors["exp_avg " + moment.name] = moment.exp_avg.clone();
    trained.tensors["exp_avg_sq " + moment.name] = moment.exp_avg_sq.clone();
  }
  const StateDict values = full_state_dict(model, {.rank0_only = false});
  for (const auto& item : values) {
    trained.tensors["whole " + item.key()] = item.value();
  }
  const OptimStateDict states = full_optim_state_dict(model, optimizer, /*rank0_only=*/false);
  for (const auto& item : states) {
    trained.tensors["whole exp_avg " + item.key()] = item.value().exp_avg;
    trained.tensors["whole exp_avg_sq " + item.key()] = item.value().exp_avg_sq;
  }
  for (const MemoryKind kind : {MemoryKind::MasterShard, MemoryKind::OptimizerState,
                                MemoryKind::GradientShard, MemoryKind::TravellingShard}) {
    trained.resident_bytes[kind] = model.memory().bytes(kind);
  }
}

void step(auto& model, AdamW& optimizer, int index) {
  const Example example = make_example(index);
  sum_of_errors(model(example.x), example.y).backward();
  optimizer.step();
  optimizer.zero_grad();
}

Trained train(World world, const Mode& mode, const Part& part, const std::string& folder,
              Strategy strategy) {
  auto model = fully_shard(make_net(), mesh_for(world, strategy),
                           offload_options(mode, folder, strategy, part));
  AdamW optimizer(model, {.lr = 1e-2}, {}, mode.optimizer);
  for (int index = 0; index < 4; ++index) {
    step(model, optimizer, index);
  }
  EXPECT_LE(model.memory().peak_bytes(), model.planned_peak_bytes());
  Trained trained;
  put_states(trained, model, optimizer);
  return trained;
}

void expect_equal(const Trained& expected, const Trained& found, const std::string& what) {
  ASSERT_EQ(expected.tensors.size(), found.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_TRUE(at::equal(tensor, found.tensors.at(name))) << what << ": " << name;
  }
}

class OffloadOf : public testing::TestWithParam<Part> {
 protected:
  [[nodiscard]] bool has(const std::string& part) const {
    return GetParam().name == part || GetParam().name == std::string("all");
  }
};
INSTANTIATE_TEST_SUITE_P(Parts, OffloadOf, testing::ValuesIn(parts()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(OffloadOf, TrainsToTheSameBits) {
  const TempFolder folder;
  const bool is_long = has("optimizer");
  for (const Mode& mode : is_long ? modes() : std::vector<Mode>{modes()[0], modes()[2]}) {
    for (const int ranks : is_long ? std::vector<int>{1, 2, 4} : std::vector<int>{1, 2}) {
      for (const Strategy strategy : kStrategies) {
        run_ranks(ranks, [&](World world) {
          const Trained expected = train(world, mode, GetParam(), "", strategy);
          const Trained found = train(world, mode, GetParam(), folder.path().string(), strategy);
          expect_equal(expected, found, std::string(mode.name) + ", " + name_of(strategy));
          const auto expect_gone = [&](const std::string& part, MemoryKind kind) {
            EXPECT_EQ(found.resident_bytes.at(kind),
                      has(part) ? 0 : expected.resident_bytes.at(kind))
                << mode.name << ", " << part << " on " << ranks;
          };
          expect_gone("optimizer", MemoryKind::MasterShard);
          expect_gone("optimizer", MemoryKind::OptimizerState);
          expect_gone("parameters", MemoryKind::TravellingShard);
        });
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Each parameter is updated in several stretches; gradients are added up, clipped, hooked and
// shown.
TEST_P(OffloadOf, AccumulatesAndClipsToTheSameBits) {
  const TempFolder folder;
  for (const Mode& mode : {modes()[0], modes()[2]}) {
    for (const Strategy strategy : {Strategy::FullShard, Strategy::NoShard}) {
      run_ranks(2, [&](World world) {
        std::vector<Trained> outcomes;
        for (const std::string& place : {std::string(), folder.path().string()}) {
          auto model = fully_shard(make_net(1, 1300), mesh_for(world, strategy),
                                   offload_options(mode, place, strategy, GetParam()));
          AdamW optimizer(model, {.lr = 1e-2}, {}, mode.optimizer);
          model.set_all_reduce_hook(
              [](const std::string& /*unit*/, const at::Tensor& shard) { shard.mul_(0.5); });
          double norms = 0;
          for (int index = 0; index < 2; ++index) {
            for (int micro = 0; micro < 2; ++micro) {
              const Example example = make_example(2 * index + micro);
              sum_of_errors(model(example.x), example.y).backward();
            }
            norms += clip_grad_norm(model, 0.1).item<double>();
            norms += clip_grad_norm(model, 0.05, 1.0).item<double>();
            optimizer.step();
            if (index == 0) {
              optimizer.zero_grad();
            }
          }
          EXPECT_EQ(model.memory().bytes(MemoryKind::OffloadSlot), 0) << mode.name;
          Trained& trained = outcomes.emplace_back();
          for (const ParameterShard& shard : model.parameter_shards()) {
            trained.tensors["gradient " + shard.name] = shard.gradient.clone();
          }
          put_states(trained, model, optimizer);
          trained.tensors["norms"] = at::full({1}, norms, at::kDouble);
        }
        expect_equal(outcomes[0], outcomes[1], mode.name);
      });
    }
  }
}

// Each parameter is updated in several stretches, of which the last is shorter.
TEST(Offload, OfLargeParametersTrainsToTheSameBits) {
  const TempFolder folder;
  for (const Mode& mode : modes()) {
    run_ranks(2, [&](World world) {
      std::vector<Trained> outcomes;
      for (const std::string& place : {std::string(), folder.path().string()}) {
        auto model =
            fully_shard(make_net(1, 1900), Mesh::shard(world), offload_options(mode, place));
        AdamW optimizer(model, {.lr = 1e-2}, {}, mode.optimizer);
        for (int index = 0; index < 2; ++index) {
          step(model, optimizer, index);
        }
        EXPECT_EQ(model.memory().bytes(MemoryKind::OffloadSlot), 0) << mode.name;
        put_states(outcomes.emplace_back(), model, optimizer);
      }
      expect_equal(outcomes[0], outcomes[1], mode.name);
    });
  }
}

// Of a rank that holds none of them there is nothing to offload.
TEST(Offload, OfChosenParametersThatLieOnOneRank) {
  const TempFolder folder;
  run_ranks(2, [&](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world),
                             offload_options(modes()[1], folder.path().string()));
    AdamW optimizer(model, {.lr = 1e-2}, {},
                    {.contains = [](const std::string& name) { return name.starts_with("head"); }});
    step(model, optimizer, 0);
    EXPECT_EQ(optimizer.steps_done(), 1);
  });
}

// Each form goes on from a checkpoint of each.
TEST_P(OffloadOf, GoesOnFromCheckpointsOfStateInMemoryAndBack) {
  const TempFolder folder;
  const std::string disk = (folder.path() / "disk").string();
  for (const Mode& mode : {modes()[1], modes()[2]}) {
    for (const std::string& saved : {std::string(), disk}) {
      const std::string path = (folder.path() / ("saved" + std::to_string(saved.size()))).string();
      run_ranks(2, [&](World world) {
        auto model = fully_shard(make_net(), Mesh::shard(world),
                                 offload_options(mode, saved, Strategy::FullShard, GetParam()));
        AdamW optimizer(model, {.lr = 1e-2});
        step(model, optimizer, 0);
        save_checkpoint(model, optimizer, path, "");
        step(model, optimizer, 1);
        Trained expected;
        put_states(expected, model, optimizer);
        for (const std::string& resumed : {std::string(), disk}) {
          auto other = fully_shard(make_net(), Mesh::shard(world),
                                   offload_options(mode, resumed, Strategy::FullShard, GetParam()));
          AdamW its(other, {.lr = 1e-2});
          load_checkpoint(other, its, path);
          step(other, its, 1);
          Trained found;
          put_states(found, other, its);
          expect_equal(expected, found, mode.name);
        }
      });
    }
  }
}

// What is filled, shown whole, written, and loaded from whole tensors.
TEST_P(OffloadOf, IsFilledShownAndWrittenAsStateInMemory) {
  const TempFolder folder;
  for (const Mode& mode : {modes()[0], modes()[1], modes()[2]}) {
    run_ranks(2, [&](World world) {
      std::vector<Trained> outcomes;
      for (const std::string& place : {std::string(), folder.path().string()}) {
        Net net = make_net();
        auto model = fully_shard(net, Mesh::shard(world),
                                 offload_options(mode, place, Strategy::FullShard, GetParam()));
        AdamW optimizer(model, {.lr = 1e-2});
        int number = 0;
        initialize(model, 5, [&](ParameterInit& parameter) {
          ++number % 2 == 0 ? parameter.fill_constant(1.0 / 3.0) : parameter.fill_normal(0, 0.1);
        });
        with_full_parameters(model, "", [&] { net->parameters().front().flatten()[0] = 7.5; },
                             {.writeback = true});
        step(model, optimizer, 0);
        const StateDict values = full_state_dict(model);
        const OptimStateDict states = full_optim_state_dict(model, optimizer);
        step(model, optimizer, 1);
        load_full_state_dict(model, values);
        load_full_optim_state_dict(model, optimizer, states);
        step(model, optimizer, 2);
        put_states(outcomes.emplace_back(), model, optimizer);
      }
      expect_equal(outcomes[0], outcomes[1], mode.name);
    });
  }
}

TEST(Offload, RefusesWhatItDoesNotGoWith) {
  const TempFolder folder;
  const Mesh mesh = Mesh::shard(World::alone());
  ShardOptions options = offload_options(modes()[1], folder.path().string());
  auto model = fully_shard(make_net(), mesh, options);
  expect_error(
      [&] { static_cast<void>(optim_parameters(model)); }, ExitCode::Usage,
      {"[optim_parameters]", "is stored on a disk (ShardOptions::offload)", "use sherd::AdamW"});
  expect_error([&] { model.publish(); }, ExitCode::Usage,
               {"[publish] values of unit", "are stored on a disk", "is a copy of them"});
  options.units = unit_policy::every_unit(
      {.precision = Precision{.param_dtype = at::kBFloat16, .full_precision_in_eval = true}});
  expect_error([&] { fully_shard(make_net(), mesh, options); }, ExitCode::Usage,
               {"leave full_precision_in_eval"});
  options.units = {};
  options.precision.full_precision_in_eval = true;
  expect_error([&] { fully_shard(make_net(), mesh, options); }, ExitCode::Usage,
               {"[fully_shard] masters that are stored on a disk", "leave full_precision_in_eval"});
}

// Where ranks read each other's memory no piece may go.
TEST(Offload, OfParametersIsRefusedWhereACommunicatorHoldsThem) {
  const TempFolder folder;
  const Offload offload = parts()[2].in(folder.path().string());
  const Mesh mesh = Mesh::shard(World::fake({.size = 2, .local_size = 2}));
  const auto net = on_meta([] { return make_net(); });
  expect_error([&] { fully_shard(net, mesh, {.offload = offload}); }, ExitCode::Usage,
               {"[fully_shard] parameters cannot be stored on a disk (Offload::parameter_folder)",
                "Transport::ProcessGroups"});
  const Mesh apart =
      Mesh::shard(World::fake({.size = 2, .local_size = 2, .transport = Transport::ProcessGroups}));
  auto model = fully_shard(on_meta([] { return make_net(); }), apart, {.offload = offload});
  EXPECT_EQ(model.memory().bytes(MemoryKind::TravellingShard), 0);
  EXPECT_GT(model.memory().offloaded_bytes(), 0);
}

/// Training in bf16 that a transfer ends in its second step, and what goes on from the first.
struct Interrupted {
  Interrupted(const World& world, const Part& part, const std::string& folder, int64_t width = 13)
      : disk(folder + "/disk"),
        saved(folder + "/saved"),
        model(fully_shard(make_net(3, width), Mesh::shard(world),
                          offload_options(modes()[1], disk, Strategy::FullShard, part))),
        optimizer(model, {.lr = 1e-2}) {
    step(model, optimizer, 0);
    save_checkpoint(model, optimizer, saved, "");
    step(model, optimizer, 1);
    put_states(expected, model, optimizer);
    load_checkpoint(model, optimizer, saved);
  }
  void backward(int index) {
    const Example example = make_example(index);
    sum_of_errors(model(example.x), example.y).backward();
  }
  void expect_torn() {
    const std::vector<std::string> words = {"of this model", "torn", "Load a checkpoint"};
    expect_error([&] { backward(1); }, ExitCode::Usage, words);
    expect_error([&] { optimizer.step(); }, ExitCode::Usage, {});
    expect_error([&] { static_cast<void>(full_state_dict(model)); }, ExitCode::Usage, words);
    expect_error([&] { save_checkpoint(model, optimizer, saved + "2", ""); }, ExitCode::Usage,
                 words);
  }
  void expect_goes_on_from_checkpoint() {
    load_checkpoint(model, optimizer, saved);
    step(model, optimizer, 1);
    Trained found;
    put_states(found, model, optimizer);
    expect_equal(expected, found, "after a load");
  }

  std::string disk;
  std::string saved;
  Sharded<Net> model;
  AdamW optimizer;
  Trained expected = {};
};

// On all ranks; each has several writes under way, which all fail.
TEST(Offload, TellsOfAWriteThatFailsAndIsTornUntilACheckpointIsLoaded) {
  for (const int ranks : {1, 2}) {
    for (const Part& part : {parts()[0], parts()[2], parts()[3]}) {
      const TempFolder folder;
      std::optional<FileSizeLimit> full_disk;
      run_ranks(ranks, [&](World world) {
        Interrupted run(world, part, folder.path().string());
        run.backward(1);
        world.barrier();
        if (world.rank() == 0) {
          full_disk.emplace(rlim_t{0});
        }
        world.barrier();
        expect_error([&] { run.optimizer.step(); }, ExitCode::StorageIo,
                     {"write back of unit 'all', in the optimizer of step 2, on rank " +
                          std::to_string(world.rank()) + " of " + std::to_string(ranks) + ": ",
                      "writing to the file for offloading in '" + run.disk + "' failed: ",
                      "File too large", "resume from the last checkpoint"});
        run.expect_torn();
        world.barrier();
        if (world.rank() == 0) {
          full_disk.reset();
        }
        world.barrier();
        run.expect_goes_on_from_checkpoint();
      });
    }
  }
}

// In forward, backward and update: what is read next is not what was lost.
TEST(Offload, TellsOfAReadThatFailsAndIsTornUntilACheckpointIsLoaded) {
  const TempFolder folder;
  run_ranks(1, [&](const World& world) {
    for (const Part& part : {parts()[0], parts()[1], parts()[2]}) {
      const bool of_parameters = part.name == std::string("parameters");
      const bool of_gradients = part.name == std::string("gradients");
      // Small sums of gradients are in memory still when they are added to.
      Interrupted run(world, part, folder.path().string(), of_gradients ? 1100 : 13);
      if (!of_parameters) {
        run.backward(1);
      }
      {
        const LostFiles lost(run.disk);
        const std::string where = of_parameters  ? "all-gather of unit '"
                                  : of_gradients ? "reduction of unit '"
                                                 : "update of unit '";
        const std::string phase = of_parameters  ? "forward"
                                  : of_gradients ? "backward"
                                                 : "the optimizer";
        expect_error(
            [&] { of_parameters || of_gradients ? run.backward(1) : run.optimizer.step(); },
            ExitCode::StorageIo,
            {where, "', in " + phase + " of step 2, on rank 0 of 1: ",
             "reading from the file for offloading in '" + run.disk +
                 "' failed: it ends too early"});
      }
      run.expect_torn();
      run.expect_goes_on_from_checkpoint();
    }
  });
}

}  // namespace
}  // namespace sherd::test
