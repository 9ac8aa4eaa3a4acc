// Where a run is computed, and what is said where it cannot be.

#include "llm/setup/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm/plan/device.h"
#include "llm/setup/auto_dtype.h"
#include "llm/setup/options_of_config.h"
#include "llm/track/progress.h"
#include "tests/support/expect_error.h"

namespace llm::setup {
namespace {

TEST(Device, ComputesAttentionByTheKernelThatTheConfigurationNames) {
  const auto kernels = attention_kernels_by_name();
  EXPECT_EQ(kernels.size(), 4U);
  for (const auto& [name, kernel] : kernels) {
    EXPECT_EQ(sherd::ops::name_of(kernel), name);
  }
}

using config::DeviceKind;
using config::ParamDtype;
using testing::HasSubstr;

const sherd::Gpu kHopper{"NVIDIA H100 80GB HBM3", 9, 0, std::int64_t{80} << 30, "GPU-1"};
const sherd::Gpu kTuring{"Tesla T4", 7, 5, std::int64_t{15} << 30, "GPU-2"};
const sherd::Gpus kTwo{{kHopper, kHopper}, ""};
const sherd::Gpus kNone{{}, "there is no NVIDIA driver."};
const sherd::Gpus kUnserved{{kHopper}, "this build has no part for GPUs."};

track::Say nothing_said() {
  return [](const std::string& line) { ADD_FAILURE() << line; };
}

TEST(ChosenDevice, IsAGpuOfItsOwnForEachRankWhereThereAreEnough) {
  for (const DeviceKind kind : {DeviceKind::Auto, DeviceKind::Cuda}) {
    EXPECT_EQ(chosen_device(kind, kTwo, 2, nothing_said()), c10::DeviceType::CUDA);
  }
  EXPECT_EQ(chosen_device(DeviceKind::Cpu, kTwo, 2, nothing_said()), c10::DeviceType::CPU);
}

TEST(ChosenDevice, IsTheCpuByItselfWhereThereIsNoGpu) {
  EXPECT_EQ(chosen_device(DeviceKind::Auto, kNone, 4, nothing_said()), c10::DeviceType::CPU);
  std::string said;
  EXPECT_EQ(chosen_device(DeviceKind::Auto, kUnserved, 1, [&](const auto& line) { said = line; }),
            c10::DeviceType::CPU);
  EXPECT_EQ(said, "computing on the CPU: this build has no part for GPUs.");
}

TEST(ChosenDevice, RefusesAGpuThatIsNotThere) {
  sherd::test::expect_error(
      [] { static_cast<void>(chosen_device(DeviceKind::Cuda, kNone, 1, nothing_said())); },
      sherd::ExitCode::Unavailable, {"device.kind is \"cuda\"", "there is no NVIDIA driver"});
}

TEST(ChosenDevice, RefusesMoreRanksThanGpus) {
  for (const DeviceKind kind : {DeviceKind::Auto, DeviceKind::Cuda}) {
    sherd::test::expect_error(
        [&] { static_cast<void>(chosen_device(kind, kTwo, 8, nothing_said())); },
        sherd::ExitCode::Usage, {"8 ranks on this host, and 2 GPUs", "-n 2", "--device.kind cpu"});
  }
}

TEST(GpusLine, SaysWhichGpusShardAndWhichReplicate) {
  using enum config::Strategy;
  const auto line = [](int ranks, int ranks_of_a_host, config::Strategy strategy,
                       std::optional<int> shard_size = std::nullopt) {
    config::ParallelSection parallel;
    parallel.strategy = strategy;
    parallel.shard_size = shard_size;
    return gpus_line(ranks, ranks_of_a_host, parallel);
  };
  EXPECT_EQ(line(16, 8, FullShard), "2 hosts x 8 GPUs; full_shard: shards within 16 ranks");
  EXPECT_EQ(line(4, 4, ShardGradOp),
            "1 host x 4 GPUs; shard_grad_op: shards within 4 ranks of a host");
  EXPECT_EQ(line(16, 8, HybridShard),
            "2 hosts x 8 GPUs; hybrid_shard: shards within 8 ranks of a host, replicas across 2");
  EXPECT_EQ(line(16, 4, HybridShard, 8),
            "4 hosts x 4 GPUs; hybrid_shard: shards within 8 ranks, replicas across 2");
  EXPECT_EQ(line(8, 8, NoShard), "1 host x 8 GPUs; no_shard: replicas on 8 ranks");
}

TEST(ChosenDevice, HasTheDtypesOfItsGeneration) {
  EXPECT_EQ(chosen_dtype(ParamDtype::Auto, &kHopper), ParamDtype::BFloat16);
  EXPECT_EQ(chosen_dtype(ParamDtype::Auto, &kTuring), ParamDtype::Float16);
  EXPECT_EQ(chosen_dtype(ParamDtype::Float32, &kTuring), ParamDtype::Float32);
  require_dtype(ParamDtype::BFloat16, kHopper);
  require_dtype(ParamDtype::Float16, kTuring);
  sherd::test::expect_error([] { require_dtype(ParamDtype::BFloat16, kTuring); },
                            sherd::ExitCode::Usage, {"bfloat16", "Tesla T4", "7.5", "float16"});
}

TEST(ChosenDevice, IsPlannedByItsNameAndItsOwnMemory) {
  const plan::Device hopper = plan::device_of_gpu(kHopper);
  EXPECT_EQ(hopper.name, "h100-80g");
  EXPECT_EQ(hopper.memory_bytes, kHopper.memory_bytes);
  const plan::Device turing = plan::device_of_gpu(kTuring);
  EXPECT_EQ(turing.name, "Tesla T4");
  EXPECT_EQ(turing.auto_dtype, c10::ScalarType::Half);
  EXPECT_EQ(turing.peak_operations_per_second, 0);
  EXPECT_THAT(turing.remark, HasSubstr("are unknown"));
}

}  // namespace
}  // namespace llm::setup
