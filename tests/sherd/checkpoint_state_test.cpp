// What a checkpoint keeps beside parameters and AdamW's moments: buffers, steps by parameter, the
// state of other optimizers, or none.

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "sherd/checkpoint.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/safetensors.h"
#include "sherd/state_dict.h"
#include "tests/support/buffered_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/small_net.h"
#include "tests/support/temp_folder.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;
using Body = std::function<void(Sharded<BufferedNet>& model, AdamW& optimizer)>;

void with_buffered(int ranks, uint64_t seed, const Body& body) {
  run_ranks(ranks, [&](World world) {
    auto model = fully_shard(make_buffered(seed), Mesh::shard(world));
    AdamW optimizer(model, {.lr = 1e-2});
    body(model, optimizer);
  });
}

// Rank 0's.
std::map<std::string, at::Tensor> buffers_of(ShardedModule& model) {
  std::map<std::string, at::Tensor> buffers;
  for_each_full_parameter(model,
                          [&](const FullParameter& tensor) {
                            if (tensor.is_buffer) {
                              buffers[tensor.name] = tensor.value;
                            }
                          },
                          {.rank0_only = false});
  return buffers;
}

bool equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& item) {
           return b.count(item.first) == 1 && at::equal(item.second, b.at(item.first));
         });
}

// Trains one step on two ranks, saves, and returns the buffers.
std::map<std::string, at::Tensor> save_buffered(const std::string& path) {
  std::map<std::string, at::Tensor> saved;
  with_buffered(2, 1, [&](auto& model, AdamW& optimizer) {
    loss_of(model(odd_input(model.world().rank()))).backward();
    optimizer.step();
    save_checkpoint(model, optimizer, path, "");
    auto buffers = buffers_of(model);
    if (model.world().rank() == 0) {
      saved = std::move(buffers);
    }
  });
  return saved;
}

void edit_manifest(const std::string& folder, const std::function<void(nlohmann::json&)>& edit) {
  const std::string path = folder + "/manifest.json";
  nlohmann::json manifest = nlohmann::json::parse(std::ifstream(path));
  edit(manifest);
  std::ofstream(path) << manifest;
}

TEST(CheckpointBuffers, AreThoseOfRank0OnAnyWorldSize) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  const auto saved = save_buffered(path);
  EXPECT_EQ(saved.at("body.norm.num_batches_tracked").item<int64_t>(), 6);
  for (const int ranks : {1, 2, 3}) {
    with_buffered(ranks, 2, [&](auto& model, AdamW& optimizer) {
      EXPECT_FALSE(equal(buffers_of(model), saved));
      load_checkpoint(model, optimizer, path);
      EXPECT_TRUE(equal(buffers_of(model), saved)) << ranks;
    });
  }
  EXPECT_NO_THROW(static_cast<void>(verify_checkpoint(path)));
}

TEST(CheckpointBuffers, OfACheckpointWithoutAnyStayAsTheyAre) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  save_buffered(path);
  edit_manifest(path, [](nlohmann::json& manifest) {
    manifest.erase("buffers");
    manifest.erase("sha256");
  });
  with_buffered(2, 2, [&](auto& model, AdamW& optimizer) {
    const auto before = buffers_of(model);
    load_checkpoint(model, optimizer, path);
    EXPECT_TRUE(equal(buffers_of(model), before));
  });
}

TEST(CheckpointBuffers, OfAnotherModelAreRefused) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  save_buffered(path);
  const auto refused = [&](const std::string& what) {
    with_buffered(2, 2, [&](auto& model, AdamW& optimizer) {
      const auto before = buffers_of(model);
      expect_error([&] { load_checkpoint(model, optimizer, path); }, ExitCode::BadData, {what});
      EXPECT_TRUE(equal(buffers_of(model), before));
    });
  };
  edit_manifest(path, [](nlohmann::json& manifest) {
    manifest.erase("sha256");
    manifest["buffers"]["more"] = manifest["buffers"]["shift"];
  });
  refused("buffers, the model");
  edit_manifest(path, [](nlohmann::json& manifest) {
    manifest["buffers"].erase("more");
    manifest["buffers"].erase("shift");
  });
  refused("no buffer 'shift'");
}

TEST(CheckpointBuffers, ThatAreDamagedAreFound) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  save_buffered(path);
  edit_manifest(path, [](nlohmann::json& manifest) {
    manifest.erase("sha256");
    manifest["buffers"]["shift"]["pieces"][0]["sha256"]["value"][0] = std::string(64, '0');
  });
  expect_error([&] { static_cast<void>(verify_checkpoint(path)); }, ExitCode::BadData,
               {"value/shift", "has a different digest"});
}

TEST(CheckpointSteps, AreThoseOfEachParameter) {
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  const std::vector<size_t> all = {0, 1, 2};
  std::map<std::string, int64_t> saved;
  run_ranks(2, [&](World world) {
    auto model = fully_shard(builder<StackNet>()(), Mesh::shard(world));
    AdamW optimizer(model);
    for (const auto& order : std::vector<std::vector<size_t>>{all, {0, 2}, {0}}) {
      loss_of(model(odd_input(world.rank()), order)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    save_checkpoint(model, optimizer, path, "");
  });
  run_ranks(3, [&](World world) {
    auto model = fully_shard(builder<StackNet>()(), Mesh::shard(world));
    AdamW optimizer(model);
    load_checkpoint(model, optimizer, path);
    EXPECT_EQ(optimizer.steps_done(), 3);
    EXPECT_EQ(optimizer.steps_done("layer0.linear.weight"), 3);
    EXPECT_EQ(optimizer.steps_done("layer1.linear.bias"), 1);
    EXPECT_EQ(optimizer.steps_done("layer2.linear.weight"), 2);
  });
}

using Tensors = std::vector<at::Tensor>;
using MakeTorch = std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>;

template <class Optimizer, class Options>
MakeTorch maker(const Options& options) {
  return [options](Tensors parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

const std::map<std::string, MakeTorch>& torch_optimizers() {
  using namespace torch::optim;
  static const std::map<std::string, MakeTorch> kAll = {
      {"Adam", maker<Adam>(AdamOptions(1e-2).amsgrad(true))},
      {"AdamW", maker<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2))},
      {"SGD", maker<SGD>(SGDOptions(1e-2).momentum(0.9).dampening(0.1))},
      {"plain SGD", maker<SGD>(SGDOptions(1e-2))},
      {"RMSprop", maker<RMSprop>(RMSpropOptions(1e-3).centered(true).momentum(0.5))},
      {"Adagrad", maker<Adagrad>(AdagradOptions(1e-2))}};
  return kAll;
}

struct TorchRun {
  Sharded<Net> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  TorchOptimizerState state;

  TorchRun(World world, const MakeTorch& make)
      : model(fully_shard(make_net(), Mesh::shard(std::move(world)))),
        optimizer(make(optim_parameters(model).values())),
        state(model, *optimizer) {}

  // Every rank computes the same, so that the number of ranks does not matter.
  void train(int first, int last) {
    for (int step = first; step < last; ++step) {
      const Example example = make_example(step);
      sum_of_errors(model(example.x), example.y).backward();
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  [[nodiscard]] Tensors values() { return full_state_dict(model, {.rank0_only = false}).values(); }
};

class CheckpointTorch : public testing::TestWithParam<std::string> {};

TEST_P(CheckpointTorch, GoesOnAsIfNothingHadHappened) {
  const MakeTorch& make = torch_optimizers().at(GetParam());
  const TempFolder folder;
  const std::string path = folder.path() / "checkpoint";
  Tensors expected;
  run_ranks(2, [&](World world) {
    TorchRun run(world, make);
    run.train(0, 3);
    save_checkpoint(run.model, run.state, path, "");
    run.train(3, 6);
    const Tensors values = run.values();
    if (world.rank() == 0) {
      expected = values;
    }
  });
  run_ranks(2, [&](World world) {
    TorchRun run(world, make);
    run.train(10, 12);  // what was there before must not matter
    load_checkpoint(run.model, run.state, path);
    run.train(3, 6);
    const Tensors values = run.values();
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(at::equal(values[i], expected[i])) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Optimizers, CheckpointTorch,
                         testing::Values("Adam", "AdamW", "SGD", "plain SGD", "RMSprop", "Adagrad"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, ' ');
                           return name;
                         });

TEST(CheckpointTorchSteps, AreCountedByTheOptimizer) {
  run_ranks(2, [&](World world) {
    TorchRun run(world, torch_optimizers().at("Adam"));
    EXPECT_EQ(run.state.steps_done(), 0);
    run.train(0, 2);
    EXPECT_EQ(run.state.steps_done(), 2);
  });
}

TEST(CheckpointOptimizer, OfAnotherKindIsRefusedAndChangesNothing) {
  const TempFolder folder;
  const std::string of_sgd = folder.path() / "of_sgd";
  const std::string of_none = folder.path() / "of_none";
  run_ranks(2, [&](World world) {
    TorchRun run(world, torch_optimizers().at("SGD"));
    run.train(0, 1);
    save_checkpoint(run.model, run.state, of_sgd, "");
    save_checkpoint(run.model, of_none, "a note");
  });
  run_ranks(2, [&](World world) {
    TorchRun run(world, torch_optimizers().at("Adam"));
    AdamW optimizer(run.model);
    const Tensors before = run.values();
    expect_error([&] { load_checkpoint(run.model, run.state, of_sgd); }, ExitCode::BadData,
                 {of_sgd, "its optimizer was another one: it has 'momentum_buffer'"});
    expect_error([&] { load_checkpoint(run.model, optimizer, of_sgd); }, ExitCode::BadData,
                 {"its optimizer was not AdamW", "'momentum_buffer'"});
    expect_error([&] { load_checkpoint(run.model, optimizer, of_none); }, ExitCode::BadData,
                 {"it has no optimizer state of parameter"});
    const Tensors after = run.values();
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(at::equal(before[i], after[i]));
    }
    EXPECT_EQ(load_checkpoint(run.model, of_none).note, "a note");
    EXPECT_FALSE(at::equal(run.values()[0], before[0]));
    load_checkpoint(run.model, of_sgd);  // whatever its optimizer was
  });
}

TEST(CheckpointOptimizer, OfAnUnknownKindIsRefused) {
  run_ranks(1, [&](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    torch::optim::LBFGS optimizer(optim_parameters(model).values());
    expect_error([&] { TorchOptimizerState state(model, optimizer); }, ExitCode::Usage,
                 {"[TorchOptimizerState]", "none of LibTorch's Adam, AdamW, SGD"});
  });
}

// Writes a Hugging Face folder of the model's state.
void write_weights(const std::string& folder, const StateDict& state) {
  fs::create_directories(folder);
  std::vector<SafetensorsSpec> specs;
  for (const auto& item : state) {
    specs.push_back({item.key(), item.value().scalar_type(), item.value().sizes().vec()});
  }
  SafetensorsWriter writer(folder + "/model.safetensors", specs);
  for (const auto& item : state) {
    const at::Tensor values = item.value().contiguous();
    writer.write(item.key(), values.const_data_ptr(), static_cast<size_t>(values.nbytes()));
  }
  writer.finish();
}

TEST(LoadSafetensors, BringsBuffersAlong) {
  const TempFolder folder;
  const std::string path = folder.path() / "model";
  with_buffered(1, 1, [&](auto& model, AdamW&) {
    StateDict state = full_state_dict(model);
    write_weights(path, state);
  });
  with_buffered(2, 2, [&](auto& model, AdamW&) {
    load_safetensors(model, path);
    const auto buffers = buffers_of(model);
    const SafetensorsFolder weights(path);
    for (const auto& [name, tensor] : buffers) {
      const auto found = weights.find(name);
      ASSERT_TRUE(found) << name;
      EXPECT_TRUE(at::equal(found->file->read(*found->entry), tensor)) << name;
    }
  });
}

TEST(LoadSafetensors, RefusesABufferOfAnotherKind) {
  const TempFolder folder;
  const std::string path = folder.path() / "model";
  with_buffered(1, 1, [&](auto& model, AdamW&) {
    StateDict state;
    for (const auto& item : full_state_dict(model)) {
      state.insert(item.key(), item.key() == "body.norm.num_batches_tracked"
                                   ? item.value().to(at::kFloat)
                                   : item.value());
    }
    write_weights(path, state);
  });
  with_buffered(2, 2, [&](auto& model, AdamW&) {
    const auto before = buffers_of(model);
    expect_error([&] { load_safetensors(model, path); }, ExitCode::BadData,
                 {"'body.norm.num_batches_tracked' has dtype F32, and the model's buffer Long"});
    EXPECT_TRUE(equal(buffers_of(model), before));
  });
}

// What one rank cannot read is every rank's failure, at once.
TEST(LoadSafetensors, FailsOnAllRanksTogether) {
  const TempFolder folder;
  const std::string path = folder.path() / "model";
  with_buffered(1, 1, [&](auto& model, AdamW&) { write_weights(path, full_state_dict(model)); });
  with_buffered(2, 2, [&](auto& model, AdamW&) {
    const std::string mine =
        model.world().rank() == 1 ? (folder.path() / "elsewhere").string() : path;
    expect_error([&] { load_safetensors(model, mine); }, ExitCode::InputMissing,
                 {"the weights could not be read, rank 1", "elsewhere"});
  });
}

// The folder's name for a parameter if `some` takes it; else none.
std::function<std::string(const std::string&)> of_names(bool in_head) {
  return [in_head](const std::string& name) {
    return name.starts_with("head.") == in_head ? name : "";
  };
}

TEST(LoadSafetensors, OfAPartLeavesTheRestWithoutValues) {
  const TempFolder folder;
  const std::string path = folder.path() / "model";
  auto whole = fully_shard(make_net(), Mesh::shard(World::alone()));
  write_weights(path, full_state_dict(whole));
  const at::Tensor expected = whole(make_example(1).x).detach();
  run_ranks(2, [&](World world) {
    auto model = fully_shard(on_meta([] { return Net(); }), Mesh::shard(world));
    load_safetensors(model, path, of_names(false));
    expect_error([&] { model(make_example(1).x); }, ExitCode::Usage,
                 {"parameter 'head.weight' was built on the meta device and has no values"});
    load_safetensors(model, path, of_names(true));
    EXPECT_TRUE(at::equal(model(make_example(1).x), expected));
  });
}

// Neither of two loads alone does.
TEST(LoadSafetensors, InPartsMendsATornModel) {
  const TempFolder folder;
  const std::string path = folder.path() / "model";
  const std::string damaged = folder.path() / "checkpoint";
  run_ranks(1, [&](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    write_weights(path, full_state_dict(model));
    save_checkpoint(model, damaged, "");
    std::fstream file(damaged + "/shard-00000-of-00001.safetensors");
    file.seekp(-1, std::ios::end).put('\x7f');
    file.close();
    expect_error([&] { load_checkpoint(model, damaged); }, ExitCode::BadData, {"digest"});
    for (const bool in_head : {false, true}) {
      expect_error([&] { model(make_example(1).x); }, ExitCode::Usage, {"torn: load_checkpoint"});
      load_safetensors(model, path, of_names(in_head));
    }
    model(make_example(1).x);
  });
}

TEST(LoadSafetensors, TakesReadersOfIntegersAlone) {
  const TempFolder folder;
  const std::string path = folder.path() / "model";
  auto model = fully_shard(make_net(), Mesh::shard(World::alone()));
  write_weights(path, full_state_dict(model));
  const auto reader_of = [](const std::string& name) -> StoredReader {
    return name == "head.bias" ? [](const SafetensorsLocation&, int64_t, int64_t, void*) {}
                               : StoredReader();
  };
  expect_error([&] { load_safetensors(model, path, {}, reader_of); }, ExitCode::BadData,
               {"'head.bias' has a reader, and its parameter is not of integers"});
}

}  // namespace
}  // namespace sherd::test
