// The engine on a GPU: one rank, several ranks that share it, and NCCL with one rank. Every test
// runs in processes of its own, since a process that has asked the driver cannot be forked.

#include <filesystem>
#include <utility>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "sherd/backend.h"
#include "sherd/checkpoint.h"
#include "sherd/memory.h"
#include "sherd/sharded_module.h"
#include "src/comm/communicators.h"
#include "src/rendezvous/gpus.h"
#include "src/storage/movable_storage.h"
#include "tests/support/meshes.h"
#include "tests/support/processes.h"
#include "tests/support/temp_folder.h"
#include "tests/support/train_small_net.h"

namespace sherd::test {
namespace {

// Without asking the driver, after which nobody may fork.
bool has_gpu() {
  return SHERD_TEST_CUDA != 0 && std::filesystem::exists("/dev/nvidiactl");
}

#define SHERD_NEEDS_GPU()                                                            \
  if (!has_gpu()) {                                                                  \
    GTEST_SKIP() << "SKIPPED: needs an NVIDIA GPU and a build with -DSHERD_CUDA=ON"; \
  }                                                                                  \
  static_assert(true, "a semicolon must follow")

void expect_success(int ranks, c10::DeviceType device, const std::function<void(World)>& body) {
  const auto statuses = run_processes(ranks, body, std::chrono::seconds(60), device);
  EXPECT_EQ(statuses, std::vector<int>(static_cast<size_t>(ranks), 0));
}

struct Trained {
  std::map<std::string, at::Tensor> shards;  // on the host
  double last_loss = 0;
};

Trained train(World world, const ShardOptions& options) {
  auto model = fully_shard(make_net(), mesh_for(world, options.strategy), options);
  AdamW optimizer(model, {.lr = 1e-2});
  Trained trained;
  for (int step = 0; step < 5; ++step) {
    const Example example = make_example(step * world.size() + world.rank());
    const at::Tensor loss = sum_of_errors(model(example.x), example.y.to(world.device()));
    loss.backward();
    clip_grad_norm(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
    trained.last_loss = loss.item<double>();
  }
  for (const ParameterShard& shard : model.parameter_shards()) {
    trained.shards[shard.name] = shard.value.cpu().clone();  // on a CPU, cpu() is the model's own
  }
  return trained;
}

// The same ranks on the host: a world of one in the same process, or threads.
void check_close(const Trained& host, const Trained& device) {
  for (const auto& [name, value] : host.shards) {
    TORCH_CHECK(at::allclose(value, device.shards.at(name), 1e-4, 1e-5), name, " differs");
  }
}

// What the tests below compare with.
TEST(OnTheHost, ValuesOutliveTheModelThatTheyAreOf) {
  expect_success(1, c10::kCPU, [](const World& /*world*/) {
    const Trained trained = train(World::alone(), {});
    for (const auto& [name, value] : trained.shards) {
      TORCH_CHECK(std::isfinite(value.sum().item<double>()), name);
    }
  });
}

// LibTorch's own factory functions, without a World.
TEST(Gpu, ATensorOfTheUsersOwnFollowsGpus) {
  SHERD_NEEDS_GPU();
  const auto statuses = run_processes(
      1,
      [](const World& /*world*/) {
        TORCH_CHECK(gpus().problem.empty(), gpus().problem);
        const at::Tensor ours = at::arange(4, at::TensorOptions(at::kFloat).device(at::kCUDA));
        TORCH_CHECK(ours.sum().item<double>() == 6);
      },
      std::chrono::seconds(60), c10::kCPU);
  EXPECT_EQ(statuses, std::vector<int>(1, 0));
}

TEST(Gpu, AWorldOfOneTrainsAsOnTheHost) {
  SHERD_NEEDS_GPU();
  expect_success(1, c10::kCUDA, [](World world) {
    for (const bool checkpoint : {false, true}) {
      const ShardOptions options{
          .units = unit_policy::every_unit({.checkpoint_activations = checkpoint})};
      check_close(train(World::alone(), options), train(world, options));
    }
  });
}

TEST(Gpu, AWorldOfOneTrainsInBf16) {
  SHERD_NEEDS_GPU();
  expect_success(1, c10::kCUDA, [](World world) {
    const Trained trained = train(world, {.precision = {.param_dtype = at::kBFloat16}});
    TORCH_CHECK(std::isfinite(trained.last_loss));
  });
}

// What rests on the host, or on a disk behind it, has the bits of what stays.
TEST(Gpu, OffloadTrainsToTheSameBits) {
  SHERD_NEEDS_GPU();
  const TempFolder folder;
  const std::string disk = folder.path().string();
  expect_success(1, c10::kCUDA, [&](World world) {
    ShardOptions options{.precision = {.param_dtype = at::kBFloat16}};
    const Trained stays = train(world, options);
    for (const Offload& offload :
         {Offload{.optimizer_on_host = true, .parameters_on_host = true, .gradients_on_host = true},
          Offload{.optimizer_folder = disk, .gradient_folder = disk, .parameter_folder = disk}}) {
      options.offload = offload;
      const Trained rests = train(world, options);
      for (const auto& [name, value] : stays.shards) {
        TORCH_CHECK(at::equal(value, rests.shards.at(name)), name, " differs");
      }
    }
  });
}

// Any operator that makes the host wait ends the second step or the third.
TEST(Gpu, AStepMakesTheHostWaitForNothing) {
  SHERD_NEEDS_GPU();
  expect_success(1, c10::kCUDA, [](const World& world) {
    for (const auto& [dtype, offload] :
         {std::pair(at::kFloat, false), std::pair(at::kBFloat16, true),
          std::pair(at::kHalf, false)}) {
      ShardOptions options{.precision = {.param_dtype = dtype}};
      options.offload.optimizer_on_host = offload;
      auto model = fully_shard(make_net(), Mesh::shard(world), options);
      AdamW optimizer(model, {.lr = 1e-2});
      GradScaler scaler(model);
      const Example example = make_example(0);
      const at::Tensor x = example.x.to(world.device());
      const at::Tensor y = example.y.to(world.device());
      for (int step = 0; step < 3; ++step) {
        set_sync_debug_mode(step == 0 ? SyncDebugMode::Default : SyncDebugMode::Error);
        const at::Tensor loss = sum_of_errors(model(x), y);
        if (dtype == at::kHalf) {
          scaler.scale(loss).backward();
          scaler.step(optimizer);
        } else {
          loss.backward();
          optimizer.step(clip_grad_norm(model, 1.0).isfinite().logical_not());
        }
        optimizer.zero_grad();
        const HostCopy figures(loss);
        set_sync_debug_mode(SyncDebugMode::Default);
        TORCH_CHECK(std::isfinite(figures.wait().to(at::kDouble).item<double>()));
      }
    }
  });
}

// Two micro-batches a step: the first of them writes gradients, the second adds.
std::vector<at::Tensor> trained_by_micro_batches(const World& world, const ShardOptions& options,
                                                 bool as_graphs) {
  auto model = fully_shard(make_net(), Mesh::shard(world), options);
  AdamW optimizer(model, {.lr = 1e-2});
  MicroBatchGraphs graphs(model);
  const auto micro_batch = [&](const std::vector<at::Tensor>& in) {
    const at::Tensor loss = sum_of_errors(model(in[0]), in[1]);
    loss.backward();
    return loss;
  };
  std::vector<at::Tensor> values;
  for (int number = 0; number < 12; ++number) {
    const Example example = make_example(number);
    const std::vector<at::Tensor> in = {example.x.to(world.device()), example.y.to(world.device())};
    values.push_back((as_graphs ? graphs.run(in, micro_batch) : micro_batch(in)).cpu());
    if (number % 2 == 1) {
      optimizer.step(clip_grad_norm(model, 1.0).isfinite().logical_not());
      optimizer.zero_grad();
    }
  }
  TORCH_CHECK(!as_graphs || graphs.counts().launches >= 4);
  for (const ParameterShard& shard : model.parameter_shards()) {
    values.push_back(shard.value.cpu().clone());
  }
  return values;
}

TEST(Gpu, MicroBatchesAsGraphsTrainToTheSameBits) {
  SHERD_NEEDS_GPU();
  expect_success(1, c10::kCUDA, [](const World& world) {
    for (const bool checkpoint : {false, true}) {
      const ShardOptions options{
          .units = unit_policy::every_unit({.checkpoint_activations = checkpoint})};
      const auto expected = trained_by_micro_batches(world, options, false);
      const auto found = trained_by_micro_batches(world, options, true);
      for (size_t i = 0; i < expected.size(); ++i) {
        TORCH_CHECK(at::equal(expected[i], found[i]), "value ", i, " differs");
      }
    }
  });
}

TEST(Gpu, WhatRestsOnTheHostTrainsToTheSameBits) {
  SHERD_NEEDS_GPU();
  expect_success(1, c10::kCUDA, [](World world) {
    ShardOptions options{.precision = {.param_dtype = at::kBFloat16}};
    const Trained expected = train(world, options);
    options.offload.optimizer_on_host = true;
    options.offload.activations_on_host = true;
    const Trained trained = train(world, options);
    TORCH_CHECK(trained.last_loss == expected.last_loss);
    for (const auto& [name, value] : expected.shards) {
      TORCH_CHECK(at::equal(value, trained.shards.at(name)), name, " differs");
    }
  });
}

// Two ranks on one GPU exchange through the host, in every strategy: all end in the values that one
// rank reaches which accumulates their batches.
TEST(Gpu, RanksThatShareAGpuTrainAsOneRank) {
  SHERD_NEEDS_GPU();
  expect_success(2, c10::kCUDA, [](World world) {
    auto alone = fully_shard(make_net(), Mesh::shard(World::alone(c10::kCUDA)));
    AdamW reference(alone, {.lr = 1e-2});
    std::map<std::string, at::Tensor> expected;
    for (int step = 0; step < 5; ++step) {
      for (int rank = 0; rank < world.size(); ++rank) {
        const Example example = make_example(step * world.size() + rank);
        (sum_of_errors(alone(example.x), example.y.to(world.device())) / world.size()).backward();
      }
      clip_grad_norm(alone, 1.0);
      reference.step();
      reference.zero_grad();
    }
    for (const ParameterShard& shard : alone.parameter_shards()) {
      expected[shard.name] = shard.value.cpu().clone();
    }
    for (const Strategy strategy : kStrategies) {
      auto model = fully_shard(make_net(), mesh_for(world, strategy), {.strategy = strategy});
      AdamW optimizer(model, {.lr = 1e-2});
      for (int step = 0; step < 5; ++step) {
        const Example example = make_example(step * world.size() + world.rank());
        sum_of_errors(model(example.x), example.y.to(world.device())).backward();
        clip_grad_norm(model, 1.0);
        optimizer.step();
        optimizer.zero_grad();
      }
      for (const ParameterShard& shard : model.parameter_shards()) {
        const at::Tensor whole = expected.at(shard.name);
        TORCH_CHECK(at::allclose(whole.narrow(0, shard.begin, shard.end - shard.begin),
                                 shard.value.cpu(), 1e-4, 1e-5),
                    shard.name, " differs under ", name_of(strategy));
      }
    }
  });
}

TEST(Gpu, SavesAndLoadsACheckpoint) {
  SHERD_NEEDS_GPU();
  const TempFolder folder;
  expect_success(1, c10::kCUDA, [&](World world) {
    auto model = fully_shard(make_net(), Mesh::shard(world));
    AdamW optimizer(model);
    model(make_example(0).x).sum().backward();
    optimizer.step();
    const std::string path = (folder.path() / "checkpoint").string();
    save_checkpoint(model, optimizer, path, "");
    auto other = fully_shard(make_net(), Mesh::shard(world));
    AdamW resumed(other);
    load_checkpoint(other, resumed, path);
    const auto expected = model.parameter_shards();
    const auto actual = other.parameter_shards();
    for (size_t i = 0; i < expected.size(); ++i) {
      TORCH_CHECK(at::equal(expected[i].value, actual[i].value), expected[i].name, " differs");
    }
  });
}

// The communicator of ranks with a GPU each, in the smallest world that NCCL accepts.
TEST(Gpu, NcclWithOneRankGathersAndReduces) {
  SHERD_NEEDS_GPU();
  expect_success(1, c10::kCUDA, [](World world) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    const auto group = [&](int number) {
      auto named = c10::make_intrusive<c10d::PrefixStore>(std::to_string(number), store);
      return detail::cuda_functions().make_nccl_group(named, 0, 1, std::chrono::seconds(60));
    };
    const auto made = detail::make_device_communicator(
        {group(0), group(1),
         detail::FailureNotes{store, RankGroup{}, 0, std::chrono::seconds(1),
                              std::make_shared<detail::CurrentWait>()}},
        world.device());
    Communicator& communicator = *made;
    constexpr int64_t kNumel = 256;
    const SegmentSpec root{
        .name = "root", .shard_numel = kNumel, .dtype = at::kBFloat16, .is_root = true};
    const SegmentSpec block{.name = "block", .shard_numel = kNumel / 2, .dtype = at::kBFloat16};
    communicator.attach({root, block}, world.device(), std::make_shared<MemoryLedger>());
    const auto on_device = at::TensorOptions().device(world.device());
    const auto tensor_at = [&](void* data, int64_t numel) {
      return detail::flat_tensor(data, numel, at::kBFloat16, world.device());
    };
    const at::Tensor values = at::arange(kNumel, on_device).to(at::kBFloat16);
    tensor_at(communicator.travelling_shard(0), kNumel).copy_(values);
    communicator.publish(0);
    const at::Tensor slot = at::zeros({kNumel}, on_device.dtype(at::kBFloat16));
    communicator.gather(0, slot.mutable_data_ptr(), {});
    communicator.wait_gather(0);
    TORCH_CHECK(at::equal(slot, values));
    // The root in two parts, by an all-to-all of lists; the block at once.
    for (const auto& [segment, numel] : {std::pair(0, kNumel), std::pair(1, kNumel / 2)}) {
      const at::Tensor given = values.narrow(0, 0, numel);
      const at::Tensor sum = at::zeros({numel}, on_device);
      for (int i = 0; i < 3; ++i) {
        const Communicator::Reduction target{sum.mutable_data_ptr<float>(), i > 0, 0.5F};
        tensor_at(communicator.acquire_reduce_buffer(segment, target), numel).copy_(given);
        communicator.reduce(segment, target);
      }
      communicator.finish_reductions();
      TORCH_CHECK(at::equal(sum, given.to(at::kFloat) * 1.5), "segment ", segment);
    }
    double total = 2;
    communicator.all_reduce({&total, 1}, ReduceOp::Sum);
    TORCH_CHECK(total == 2);
  });
}

}  // namespace
}  // namespace sherd::test
