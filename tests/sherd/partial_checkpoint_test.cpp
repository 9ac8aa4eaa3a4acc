// A checkpoint of the trainable parameters alone: what it holds, what it needs and what it leaves.

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "sherd/checkpoint.h"
#include "sherd/state_dict.h"
#include "tests/sherd/partly_trained_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace sherd::test {
namespace {

void save_partial(int ranks, const std::string& path, State& state) {
  on_partly_trained(ranks, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 3, 0);
    save_checkpoint(model, optimizer, path, kNote, {.base = kBase});
    state.add(model, optimizer);
    state.add_loss(loss_of_model(model));
  });
}

void load_partial(int ranks, const std::string& path, State& state) {
  on_partly_trained(ranks, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 1, 50);
    EXPECT_EQ(load_checkpoint(model, optimizer, path).base, kBase);
    EXPECT_EQ(optimizer.steps_done(), 3);
    state.add(model, optimizer);
    state.add_loss(loss_of_model(model));
  });
}

class PartialCheckpointWorlds : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(PartialCheckpointWorlds, TrainedValuesAndMomentsComeBackOverTheSameBase) {
  const auto [saved_by, loaded_by] = GetParam();
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  State loaded;
  save_partial(saved_by, path, saved);
  load_partial(loaded_by, path, loaded);
  EXPECT_EQ(saved.size(), 16U + 2 * 6U);  // all values, and two moments of six parameters
  EXPECT_THAT(saved.differences(loaded), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Sizes, PartialCheckpointWorlds,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(1, 2, 3)));

TEST(PartialCheckpoint, HoldsTheTrainableParametersAlone) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  save_partial(2, path, saved);
  const CheckpointManifest manifest = verify_checkpoint(path);
  EXPECT_EQ(require_checkpoint_files(path).base, kBase);
  std::vector<std::string> names;
  for (const auto& [name, parameter] : manifest.parameters) {
    names.push_back(name);
    std::vector<float> values;
    read_checkpoint_values(path, manifest, name, [&](const float* some, int64_t numel) {
      values.insert(values.end(), some, some + numel);
    });
    EXPECT_EQ(static_cast<int64_t>(values.size()),
              std::accumulate(parameter.shape.begin(), parameter.shape.end(), int64_t{1},
                              std::multiplies<>()));
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("block1.up.weight", "block1.up.bias",
                                                   "block1.down.weight", "block1.down.bias",
                                                   "block2.down.weight", "head.bias"));
  expect_error([&] { read_checkpoint_values(path, manifest, "input.weight", {}); },
               ExitCode::BadData,
               {"has no parameter 'input.weight'", "only parameters that were trainable",
                "Read it from the base"});
}

TEST(PartialCheckpoint, TakesAtMostATwentiethMoreThanTheTrainedState) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  int64_t trained = 0;
  run_ranks(1, [&](World world) {
    auto model = fully_shard(make_frozen_net({"block1."}, 300), Mesh::shard(world),
                             {.precision = {.param_dtype = at::kBFloat16}});
    AdamW optimizer(model);
    train(model, optimizer, 1, 0);
    save_checkpoint(model, optimizer, path, kNote, {.base = kBase});
    for (const ParameterShard& shard : model.parameter_shards()) {
      trained += shard.trainable ? shard.end - shard.begin : 0;
    }
  });
  int64_t bytes = 0;
  for (const auto& [name, content] : contents(path)) {
    bytes += static_cast<int64_t>(content.size());
  }
  constexpr int64_t kStateBytes = 12;  // per parameter: a value and two moments
  EXPECT_GT(bytes, kStateBytes * trained);
  EXPECT_LE(static_cast<double>(bytes), 1.05 * kStateBytes * static_cast<double>(trained));
}

TEST(PartialCheckpoint, TrainingGoesOnAsIfNothingHadHappened) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State whole;
  State resumed;
  on_partly_trained(2, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 3, 0);
    save_checkpoint(model, optimizer, path, kNote, {.base = kBase});
    train(model, optimizer, 2, 3);
    whole.add(model, optimizer);
  });
  on_partly_trained(2, [&](Model& model, AdamW& optimizer) {
    load_checkpoint(model, optimizer, path);
    train(model, optimizer, 2, 3);
    resumed.add(model, optimizer);
  });
  EXPECT_THAT(whole.differences(resumed), testing::IsEmpty());
}

// To evaluate, all is frozen: what the checkpoint holds is restored all the same.
TEST(PartialCheckpoint, IsRestoredIntoAModelThatTrainsNothing) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  save_partial(2, path, saved);
  State loaded;
  run_ranks(2, [&](World world) {
    auto model = fully_shard(make_frozen_net({}), Mesh::shard(world),
                             {.precision = {.param_dtype = at::kBFloat16}});
    load_checkpoint(model, path);
    loaded.add_loss(loss_of_model(model));
  });
  State other;
  on_partly_trained(2, [&](Model& model, AdamW& optimizer) {
    load_checkpoint(model, optimizer, path);
    other.add_loss(loss_of_model(model));
  });
  EXPECT_THAT(loaded.differences(other), testing::IsEmpty());  // the loss
}

TEST(PartialCheckpoint, ThatLacksATrainableParameterIsRefused) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  save_partial(2, path, saved);
  on_partly_trained(2,
                    [&](Model& model, AdamW& optimizer) {
                      expect_error([&] { load_checkpoint(model, optimizer, path); },
                                   ExitCode::BadData,
                                   {"no parameter 'head.weight', which is trainable here"});
                      train(model, optimizer, 1, 0);  // nothing is torn
                    },
                    {"block1.", "block2.down.weight", "head."});
}

// Of a model that lacks one of its parameters.
TEST(PartialCheckpoint, OfAnotherModelIsRefused) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  save_partial(1, path, saved);
  run_ranks(1, [&](World world) {
    Net net = make_net(2);
    for (const auto& item : net->named_parameters()) {
      item.value().requires_grad_(is_among(item.key(), kTrained));
    }
    auto model = fully_shard(net, Mesh::shard(world));
    expect_error([&] { load_checkpoint(model, path); }, ExitCode::BadData,
                 {"of another model", "6 trainable parameters, the model 5"});
  });
}

TEST(PartialCheckpoint, NeedsTheValuesOfItsBase) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  State saved;
  save_partial(2, path, saved);
  run_ranks(2, [&](World world) {
    Net net = on_meta([] { return make_frozen_net(kTrained); });
    auto model = fully_shard(net, Mesh::shard(world));
    expect_error([&] { load_checkpoint(model, path); }, ExitCode::Usage,
                 {"frozen parameter 'input.weight' has no values yet", "load the base first"});
    initialize(model, 1, [](ParameterInit& init) { init.fill_normal(0, 1); });
    load_checkpoint(model, path);
    loss_of_model(model);
  });
}

void flip_last_bit(const fs::path& file) {
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
}

// A failed load of a whole model has torn the base too: the trained part does not mend that.
TEST(PartialCheckpoint, MendsWhatAPartialLoadHasTornAndNothingElse) {
  const TempFolder folder;
  const fs::path whole = folder.path() / "whole";
  const fs::path part = folder.path() / "part";
  State saved;
  on_partly_trained(2, [&](Model& model, AdamW& optimizer) {
    train(model, optimizer, 3, 0);
    save_checkpoint(model, optimizer, whole, kNote);
    save_checkpoint(model, optimizer, part, kNote, {.base = kBase});
    saved.add(model, optimizer);
  });
  for (const fs::path& path : {whole, part}) {
    fs::copy(path, path.string() + "-damaged");
    flip_last_bit(path.string() + "-damaged/shard-00001-of-00002.safetensors");
  }
  State loaded;
  on_partly_trained(2, [&](Model& model, AdamW& optimizer) {
    expect_error([&] { load_checkpoint(model, optimizer, part.string() + "-damaged"); },
                 ExitCode::BadData, {"a different digest"});
    expect_error([&] { loss_of_model(model); }, ExitCode::Usage, {"torn: load_checkpoint"});
    load_checkpoint(model, optimizer, part);
    loss_of_model(model);
    expect_error([&] { load_checkpoint(model, optimizer, whole.string() + "-damaged"); },
                 ExitCode::BadData, {"a different digest"});
    expect_error([&] { load_checkpoint(model, optimizer, part); }, ExitCode::Usage,
                 {"the frozen parameter", "is torn", "load the base first"});
    load_checkpoint(model, optimizer, whole);
    load_checkpoint(model, optimizer, part);
    loaded.add(model, optimizer);
  });
  EXPECT_THAT(saved.differences(loaded), testing::IsEmpty());
}

TEST(PartialCheckpoint, TellsAWholeOneFromAPart) {
  const TempFolder folder;
  const fs::path path = folder.path() / "checkpoint";
  State saved;
  save_partial(1, path, saved);
  const auto good = nlohmann::json::parse(read_file(path / "manifest.json"));
  EXPECT_EQ(good["version"], 3);  // programs that know no base refuse it
  struct Edit {
    std::string field;
    nlohmann::json value;
    std::string message;
  };
  for (const auto& [field, value, message] :
       {Edit{"version", 2, "it has a base, which version 2 does not know"},
        Edit{"base", nullptr, "type must be string"}}) {
    auto bad = good;
    bad.erase("sha256");
    bad[field] = value;
    std::ofstream(path / "manifest.json") << bad;
    expect_error([&] { (void)CheckpointManifest::read(path); }, ExitCode::BadData,
                 {"manifest.json", message});
  }
  auto bad = good;
  bad["base"] = "sha256:ffff";
  std::ofstream(path / "manifest.json") << bad;
  expect_error([&] { (void)CheckpointManifest::read(path); }, ExitCode::BadData,
               {"was damaged or edited"});
}

}  // namespace
}  // namespace sherd::test
