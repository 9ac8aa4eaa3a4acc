// Offload from a device to a disk behind its host.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "sherd/checkpoint.h"
#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "sherd/state_dict.h"
#include "tests/fake_device/offloads.h"
#include "tests/fake_device/scenario_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/failing_files.h"
#include "tests/support/small_net.h"
#include "tests/support/temp_folder.h"

namespace sherd::fake {
namespace {

// A disk behind the host: the same bits as without, in any order, alone and over NCCL.
TEST(OffloadBehindTheHost, TrainsTheSame) {
  const test::TempFolder folder;
  const std::string disk = folder.path().string();
  const Offload some{
      .optimizer_folder = disk, .parameters_on_host = true, .gradients_on_host = true};
  for (const auto& [at, ranks] : {std::pair(0U, 1),
                                  {0U, 2},
                                  {1U, 1},
                                  {1U, 3},
                                  {2U, 1},
                                  {2U, 4},
                                  {5U, 1},
                                  {5U, 2},
                                  {6U, 1},
                                  {7U, 1},
                                  {7U, 2},
                                  {12U, 4}}) {
    Scenario scenario = plain(scenarios()[at]);
    scenario.ranks = ranks;
    SCOPED_TRACE(scenario.name + ", " + std::to_string(ranks));
    const Values expected = on_devices(scenario, 0);
    for (const Offload& offload : {all_on_disk(disk), some}) {
      scenario.options.offload = offload;
      for (const uint64_t seed : {0U, 1U}) {
        EXPECT_TRUE(are_equal(expected, on_devices(scenario, seed))) << "seed " << seed;
      }
    }
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

struct HeldWithDisk {
  MemoryLedger memory;
  int64_t slot_bytes = 0;
  int64_t page_bytes = 0;
};

HeldWithDisk held_with_all_on_disk(const World& world, const Offload& offload) {
  ShardOptions options{.precision = {.param_dtype = at::kBFloat16}};
  options.offload = offload;
  auto model = fully_shard(test::make_net(), Mesh::shard(world), options);
  const StreamsEndFirst streams_end_first(world);
  AdamW optimizer(model, {.lr = 1e-2});
  const at::Tensor x = test::make_example(0).x.to(world.device());
  for (int step = 0; step < 2; ++step) {
    model(x).sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  EXPECT_LE(model.memory().peak_bytes(), model.planned_peak_bytes());
  return {model.memory(), model.offload_slot_bytes(), model.offload_page_bytes()};
}

// The device holds no more than with all on the host, and the host nothing but pages.
TEST(OffloadBehindTheHost, HoldsSlotsAndPages) {
  const test::TempFolder folder;
  const std::string disk = folder.path().string();
  HeldWithDisk held;
  run_ranks_on_devices(
      1, [&](const World& world) { held = held_with_all_on_disk(world, all_on_disk(disk)); });
  const World planned_world = World::fake({.device = c10::kCUDA});
  const HeldWithDisk planned = held_with_all_on_disk(planned_world, all_on_disk(disk));
  const HeldWithDisk on_host = held_with_all_on_disk(planned_world, all_on_host());
  EXPECT_EQ(held.memory.peak_bytes(), planned.memory.peak_bytes());
  EXPECT_EQ(held.memory.peak_bytes(), on_host.memory.peak_bytes());
  EXPECT_EQ(held.memory.on_host_bytes(), 0);
  EXPECT_EQ(held.memory.offloaded_bytes(), planned.memory.offloaded_bytes());
  EXPECT_GE(held.memory.offloaded_bytes(), on_host.memory.on_host_bytes());
  EXPECT_EQ(held.page_bytes, planned.page_bytes);
  EXPECT_GT(held.page_bytes, 0);
  EXPECT_EQ(on_host.page_bytes, 0);
  EXPECT_EQ(held.slot_bytes, on_host.slot_bytes);
}

// Of the disk, whose file can take no more.
TEST(OffloadBehindTheHost, TellsOfAWriteThatFailsAndIsTornUntilACheckpointIsLoaded) {
  const test::TempFolder folder;
  const std::string disk = folder.path().string();
  set_seed(1);
  run_ranks_on_devices(1, [&](const World& world) {
    ShardOptions options{.precision = {.param_dtype = at::kBFloat16}};
    options.offload = all_on_disk(disk);
    auto model = fully_shard(test::make_net(), Mesh::shard(world), options);
    const StreamsEndFirst streams_end_first(world);
    AdamW optimizer(model, {.lr = 1e-2});
    const auto backward = [&] {
      model(test::make_example(0).x.to(world.device())).sum().backward();
    };
    backward();
    optimizer.step();
    const std::string saved = (folder.path() / "saved").string();
    save_checkpoint(model, optimizer, saved, "");
    optimizer.zero_grad();
    backward();
    {
      const test::FileSizeLimit full_disk(0);
      test::expect_error([&] { optimizer.step(); }, ExitCode::StorageIo,
                         {"in the optimizer of step 2, on rank 0 of 1: ", "File too large",
                          "resume from the last checkpoint"});
    }
    test::expect_error(backward, ExitCode::Usage, {"are torn", "Load a checkpoint"});
    load_checkpoint(model, optimizer, saved);
    optimizer.zero_grad();
    backward();
    optimizer.step();
    test::expect_error([&] { static_cast<void>(optim_parameters(model)); }, ExitCode::Usage,
                       {"is stored on a disk", "leave the folders empty, and optimizer_on_host"});
    test::expect_error([&] { model.publish(); }, ExitCode::Usage, {"are stored on a disk"});
  });
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

// A model of several stretches, one step of which is done, and the backward of the next.
class WideModel {
 public:
  WideModel(const World& world, const Offload& offload)
      : world_(world),
        model_(fully_shard(test::make_net(2, 1500), Mesh::shard(world), options_of(offload))),
        optimizer_(AdamW(model_, {.lr = 1e-2})) {
    backward();
    optimizer_->step();
    optimizer_->zero_grad();
    backward();
  }
  void backward() { model_(test::make_example(0).x.to(world_.device())).sum().backward(); }
  [[nodiscard]] Sharded<test::Net>& model() { return model_; }
  [[nodiscard]] AdamW& optimizer() { return *optimizer_; }
  void make_another_optimizer() {
    optimizer_.reset();
    optimizer_.emplace(model_, AdamWOptions{.lr = 1e-2});
  }

 private:
  static ShardOptions options_of(const Offload& offload) {
    ShardOptions options{.precision = {.param_dtype = at::kBFloat16}};
    options.offload = offload;
    return options;
  }
  World world_;
  Sharded<test::Net> model_;
  std::optional<AdamW> optimizer_;
};

// Half-way through an update, whose pages are let go of with what they belong to.
TEST(OffloadBehindTheHost, EndsAfterAWriteThatFailsInAnUpdate) {
  const test::TempFolder folder;
  run_ranks_on_devices(1, [&](const World& world) {
    for (const bool goes_on : {false, true}) {
      WideModel wide(world, {.optimizer_folder = folder.path().string()});
      const StreamsEndFirst streams_end_first(world);
      {
        const test::FileSizeLimit full_disk(0);
        test::expect_error(
            [&] { wide.optimizer().step(); }, ExitCode::StorageIo,
            {"update of unit '", "in the optimizer of step 2, on rank 0 of 1: ", "File too large"});
      }
      if (goes_on) {
        wide.make_another_optimizer();
        test::expect_error([&] { wide.optimizer().step(); }, ExitCode::Usage, {"are torn"});
      }
    }
  });
}

// What could not be read is not there the next time either.
TEST(OffloadBehindTheHost, TellsOfReadsThatFailAsOftenAsTheyDo) {
  const test::TempFolder folder;
  const std::string disk = folder.path().string();
  run_ranks_on_devices(1, [&](const World& world) {
    {
      WideModel wide(world, {.gradient_folder = disk});
      const StreamsEndFirst streams_end_first(world);
      const test::LostFiles lost(disk);
      for (int time = 0; time < 5; ++time) {  // more often than there are units
        test::expect_error([&] { static_cast<void>(clip_grad_norm(wide.model(), 1.0, 1.0)); },
                           ExitCode::StorageIo, {"it ends too early"});
      }
    }
    WideModel wide(world, {.optimizer_folder = disk});
    const StreamsEndFirst streams_end_first(world);
    const test::LostFiles lost(disk);
    test::expect_error(
        [&] { wide.optimizer().step(); }, ExitCode::StorageIo,
        {"update of unit '", "in the optimizer of step 2, on rank 0 of 1: ", "it ends too early"});
  });
}

// Parameters of several stretches, in several pieces of the file.
std::vector<at::Tensor> train_wide(const World& world, const Offload& offload) {
  ShardOptions options{.precision = {.param_dtype = at::kBFloat16, .master = Master::Split}};
  options.offload = offload;
  auto model = fully_shard(test::make_net(2, 1500), Mesh::shard(world), options);
  const StreamsEndFirst streams_end_first(world);
  AdamW optimizer(model, {.lr = 1e-2});
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const test::Example example = test::make_example(2 * step + micro);
      test::sum_of_errors(model(example.x.to(world.device())), example.y.to(world.device()))
          .backward();
    }
    static_cast<void>(clip_grad_norm(model, 1.0));
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> values;
  for (const auto& item : full_state_dict(model, {.rank0_only = false})) {
    values.push_back(item.value().cpu());
  }
  return values;
}

TEST(OffloadBehindTheHost, TrainsTheSameInStretches) {
  const test::TempFolder folder;
  set_seed(1);
  for (const int ranks : {1, 2}) {
    Values expected(2);
    for (const Offload& offload : {Offload{}, all_on_disk(folder.path().string())}) {
      run_ranks_on_devices(ranks, [&](const World& world) {
        auto& first = expected[static_cast<size_t>(world.rank())];
        const auto values = train_wide(world, offload);
        first = first.empty() ? values : first;
        EXPECT_TRUE(are_equal({first}, {values})) << ranks;
      });
    }
  }
  EXPECT_EQ(take_faults(), std::vector<std::string>{});
}

}  // namespace
}  // namespace sherd::fake
