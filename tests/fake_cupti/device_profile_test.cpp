// A profile of a device from CUPTI's records on, through LibTorch's own profiler. CUPTI is played
// (fake_cupti.h): no GPU ran these tests.

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/plan/profiler_recording.h"
#include "llm/train/step_trace.h"
#include "tests/fake_cupti/fake_cupti.h"
#include "tests/support/temp_folder.h"

namespace at {
namespace {

// The profiler asks whether LibTorch has its part for GPUs, which has this name.
struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs /*none*/) {}
  bool hasCUDA() const override { return true; }
  int getNumGPUs() const override { return 0; }  // nobody seeds their generators
};
REGISTER_CUDA_HOOKS(CUDAHooks);

}  // namespace
}  // namespace at

namespace llm::train {
namespace {

constexpr std::uint64_t kNanoseconds = 200'000;  // of each activity

struct PlayedDevice final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  void synchronizeDevice(c10::DeviceIndex /*index*/) const override { ++waits; }
  static inline int waits = 0;
};
C10_REGISTER_GUARD_IMPL(CUDA, PlayedDevice);

const c10::Device kPlayed(c10::kCUDA, 0);
const char* const kProduct = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT";
const char* const kNorm =
    "_ZN5sherd3ops4cuda4normI13__nv_bfloat16Li256ELi1ELb0EEEvNS1_8NormRowsIT_EE";
const char* const kUpdate = "_ZN5sherd4cuda5adamwIffLi256EEEvNS0_4FlatE";

// A product in a scope of the engine, a norm, an update that is no operator, a copy and a memset.
void make_step() {
  const at::Tensor input = at::ones({8, 4}), weight = at::ones({16, 4});
  {
    RECORD_USER_SCOPE("forward");
    {
      RECORD_FUNCTION("sherd::linear", std::vector<c10::IValue>({input, weight}));
      fake_cupti::launch(kProduct, kNanoseconds);
    }
  }
  {
    RECORD_FUNCTION("sherd::rms_norm", std::vector<c10::IValue>({input}));
    {
      RECORD_FUNCTION("aten::fill_", std::vector<c10::IValue>({input}));
      fake_cupti::launch(kNorm, kNanoseconds);
    }
  }
  {
    RECORD_USER_SCOPE("AdamW::step");
    fake_cupti::launch(kUpdate, kNanoseconds);
  }
  fake_cupti::copy_on_device(1'000'000, kNanoseconds);
  fake_cupti::set_memory(500, kNanoseconds);
}

void make_steps(int count) {
  for (int i = 0; i < count; ++i) {
    make_step();
  }
}

const plan::DeviceGroup& row(const plan::DeviceTable& table, plan::KernelGroup group) {
  return *std::find_if(table.groups.begin(), table.groups.end(),
                       [&](const plan::DeviceGroup& one) { return one.group == group; });
}

TEST(DeviceProfile, HasWhatCuptiRecordsOfWholeSteps) {
  constexpr plan::DeviceLimits kLimits{
      .operations_per_second = 1e9, .bytes_per_second = 1e9, .host_bytes_per_second = 0};
  constexpr double kSeconds = kNanoseconds * 1e-9;
  PlayedDevice::waits = 0;
  const plan::DeviceTable table = plan::profile_steps(kPlayed, 3, kLimits, {}, make_steps);
  EXPECT_EQ(PlayedDevice::waits, 2);  // before the first step and after the last
  ASSERT_EQ(table.problem, "");
  ASSERT_EQ(table.groups.size(), 5);
  for (const plan::DeviceGroup& one : table.groups) {
    EXPECT_DOUBLE_EQ(one.calls, 1) << name_of(one.group);           // without the step before
    EXPECT_GE(one.seconds, 0.99 * kSeconds) << name_of(one.group);  // clocks differ a little
  }
  const plan::DeviceGroup& products = row(table, plan::KernelGroup::Products);
  EXPECT_DOUBLE_EQ(products.operations.value(), 2 * 8 * 4 * 16);
  EXPECT_NEAR(products.share_of_limit.value(), 1024 / products.seconds / 1e9, 1e-6);
  EXPECT_DOUBLE_EQ(row(table, plan::KernelGroup::Norms).bytes.value(), 3 * 8 * 4 * 4);
  EXPECT_FALSE(row(table, plan::KernelGroup::AdamW).bytes);
  EXPECT_DOUBLE_EQ(row(table, plan::KernelGroup::DeviceCopies).bytes.value(), 2e6);
  EXPECT_DOUBLE_EQ(row(table, plan::KernelGroup::Memset).bytes.value(), 500);
  EXPECT_GE(table.step_seconds, 0.99 * 5 * kSeconds);
  EXPECT_NEAR(table.sum_seconds, table.busy_seconds, 1e-9);
  EXPECT_NEAR(table.idle_seconds, table.step_seconds - table.busy_seconds, 1e-9);
}

TEST(DeviceProfile, IsPrintedAfterTracedStepsAndKernelsAreInTheTrace) {
  const sherd::test::TempFolder folder;
  StepTrace trace({.first = 2, .last = 3}, folder.path(), 0, kPlayed, {});
  std::string said;
  for (const std::int64_t step : {1, 2, 3, 4}) {
    trace.begin(step);
    make_step();
    said += trace.end(step);
  }
  EXPECT_THAT(said, testing::ContainsRegex("^trace of steps 2-3: "));
  EXPECT_THAT(said, testing::HasSubstr("\ndevice time per step, the mean of 2 recorded: "));
  EXPECT_THAT(said, testing::ContainsRegex("\n  products +1\\.0 "));
  std::ifstream file(folder.path() / "steps-2-3.rank-0.json");
  std::multiset<std::string> kernels;
  const auto written = nlohmann::json::parse(file);
  for (const auto& event : written.at("traceEvents")) {
    if (event.value("cat", "") == "kernel") {
      kernels.insert(event.at("name"));
    }
  }
  EXPECT_EQ(kernels.count(kProduct), 2);
  EXPECT_EQ(kernels.size(), 6);
}

TEST(DeviceProfile, SaysWhyThereIsNoneWhereCuptiRefuses) {
  fake_cupti::refuse(true);
  const plan::DeviceTable table = plan::profile_steps(kPlayed, 1, {}, {}, make_steps);
  fake_cupti::refuse(false);
  EXPECT_THAT(table.problem, testing::HasSubstr("NVreg_RestrictProfilingToAdminUsers"));
}

}  // namespace
}  // namespace llm::train
