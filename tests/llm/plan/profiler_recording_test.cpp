// What LibTorch's profiler records of steps: real ones on the CPU, and events of a GPU that are
// written by hand, since no test here ran on one.

#include "llm/plan/profiler_recording.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/collection.h>

#include "llm/plan/operator_watch.h"
#include "llm/setup/batch_tensors.h"
#include "llm/setup/load_model.h"
#include "tests/llm/plan/small_runs.h"

namespace llm::plan {
namespace {

namespace kineto = torch::profiler::impl;
using torch::autograd::profiler::KinetoEvent;
using torch::autograd::profiler::ProfilerResult;

constexpr std::string_view kOurs = "sherd::";

class SmallStep {
 public:
  explicit SmallStep(const std::string& family)
      : model_(setup::random_sharded(shape_of(family), sherd::Mesh::shard(sherd::World::alone()),
                                     planned_run(family, 1, sherd::Strategy::FullShard).sharding,
                                     1)) {}
  void make() { setup::loss_sum(model_, setup::to_tensors(real_batch())).backward(); }

 private:
  sherd::Sharded<model::CausalLm> model_;
};

struct Amounts {
  double calls = 0, operations = 0, moved_bytes = 0;
};

std::map<std::string, Amounts> amounts_seen_by_watch(SmallStep& step) {
  std::map<std::string, Amounts> found;
  const OperatorWatch watch([&](const OperatorCall& call) {
    const std::string name = call.kind.substr(0, call.kind.find(' '));
    if (name.starts_with("aten::")) {
      return;
    }
    Amounts& sum = found[name];
    sum.calls += 1;
    sum.operations += multiplies(name) ? call.amount : 0;
    sum.moved_bytes += call.moved_bytes;
  });
  step.make();
  return found;
}

RecordedSteps recorded(SmallStep& step) {
  ProfilerRecording recording(c10::kCPU);
  recording.start();
  step.make();
  return recorded_steps(*recording.finish());
}

// The arguments of a recorded operator tell as much as those of the call.
TEST(ProfilerRecording, KnowsWhatOperatorsComputed) {
  for (const char* const family : {"llama", "bloom"}) {
    SmallStep step(family);
    const auto expected = amounts_seen_by_watch(step);
    std::map<std::string, Amounts> found;
    for (const HostCall& call : recorded(step).calls) {
      // A norm that is computed again is part of the operator that wants it, whose amount is its.
      if (call.name.starts_with(kOurs) && !call.name.ends_with("_again")) {
        Amounts& sum = found[call.name.substr(kOurs.size())];
        sum.calls += 1;
        sum.operations += call.operations;
        sum.moved_bytes += call.moved_bytes;
      }
    }
    ASSERT_GE(found.size(), 8) << family;
    for (const auto& [name, sum] : found) {
      ASSERT_TRUE(expected.contains(name)) << name;
      EXPECT_EQ(sum.calls, expected.at(name).calls) << name;
      EXPECT_DOUBLE_EQ(sum.operations, expected.at(name).operations) << name;
      EXPECT_DOUBLE_EQ(sum.moved_bytes, expected.at(name).moved_bytes) << name;
    }
    EXPECT_GT(found.at("attention").operations, 0);
    EXPECT_GT(found.at("linear_backward").operations, 0);
  }
}

// The profiler keeps lists of 30 elements at most.
TEST(ProfilerRecording, KnowsAttentionOverUpTo29Documents) {
  const at::Tensor query = at::ones({60, 2, 4});
  const auto operations_over = [&](std::int64_t documents) {
    std::vector<std::int64_t> bounds;
    for (std::int64_t i = 0; i <= documents; ++i) {
      bounds.push_back(2 * i);
    }
    ProfilerRecording recording(c10::kCPU);
    recording.start();
    { RECORD_FUNCTION("sherd::attention", std::vector<c10::IValue>({query, bounds})); }
    return recorded_steps(*recording.finish()).calls.at(0).operations;
  };
  EXPECT_EQ(operations_over(29), 29 * 2 * 4 * 8);  // pairs of tokens, half of them causal
  EXPECT_EQ(operations_over(30), 0);
}

// Kernels that are written by hand, launched by the operators of a real step.
TEST(ProfilerRecording, IsJoinedWithWhatOperatorsLaunched) {
  SmallStep step("llama");
  RecordedSteps steps = recorded(step);
  double operations = 0;
  const std::vector<HostCall> calls = steps.calls;
  std::int64_t now = calls.back().end_ns;
  for (const HostCall& call : calls) {
    const bool multiplies = call.name == "sherd::linear" || call.name == "sherd::linear_backward";
    operations += multiplies ? call.operations : 0;
    for (const HostCall& inner : calls) {  // by an operator inside it, as LibTorch does
      if (multiplies && inner.thread == call.thread && inner.begin_ns > call.begin_ns &&
          inner.end_ns < call.end_ns && inner.name == "aten::mm") {
        steps.activities.push_back({"nvjet_hsh", now, now + 1000, inner.id});
        now += 1000;
      }
    }
    if (multiplies) {
      steps.activities.push_back({"nvjet_hsh", now, now + 1000, call.id});
      now += 1000;
    }
  }
  const DeviceTable table = device_table(steps, 1, {});
  ASSERT_EQ(table.groups.size(), 1);
  EXPECT_DOUBLE_EQ(table.groups[0].operations.value(), operations);
  EXPECT_GT(operations, 0);
}

TEST(ProfilerRecording, OfACpuHasNoDeviceTime) {
  std::vector<int> made;
  const DeviceTable table = profile_steps(c10::kCPU, 2, {}, {}, [&](int count) {
    made.push_back(count);
    static_cast<void>(at::ones({2}));
  });
  EXPECT_EQ(made, std::vector<int>({1, 2}));  // the first for the profiler alone
  EXPECT_THAT(table.problem, testing::HasSubstr("the profiler recorded nothing on the device"));
}

// As on a machine without a GPU. Steps are made all the same, and the next recording works.
TEST(ProfilerRecording, ThatFailsSaysSoAndNothingElse) {
  int made = 0;
  const DeviceTable table =
      profile_steps(c10::Device(c10::kCUDA, 0), 2, {}, {}, [&](int count) { made += count; });
  EXPECT_EQ(made, 3);
  EXPECT_FALSE(table.problem.empty());
  EXPECT_TRUE(table.groups.empty());
  ProfilerRecording next(c10::kCPU);
  next.start();
  static_cast<void>(at::ones({2}));
  EXPECT_FALSE(recorded_steps(*next.finish()).calls.empty());
}

TEST(ProfilerRecording, IsDroppedWithoutBeingFinished) {
  { const ProfilerRecording prepared(c10::kCPU); }
  {
    ProfilerRecording started(c10::kCPU);
    started.start();
  }
  const at::Tensor one = at::ones({2});
  ProfilerRecording recording(c10::kCPU);
  static_cast<void>(at::add(one, one));  // not recorded yet
  recording.start();
  static_cast<void>(at::add(one, one));
  const RecordedSteps steps = recorded_steps(*recording.finish());
  EXPECT_EQ(std::count_if(steps.calls.begin(), steps.calls.end(),
                          [](const HostCall& call) { return call.name == "aten::add"; }),
            1);
}

std::shared_ptr<kineto::Result> operator_of_host(std::uint64_t id) {
  kineto::TorchOpBasicFields fields;
  fields.scope_ = at::RecordScope::FUNCTION;
  fields.name_ = "aten::mm";
  return kineto::Result::create(
      std::int64_t{10}, std::uint64_t{7}, kineto::kineto::DeviceAndResource{},
      kineto::ExtraFields<kineto::EventType::TorchOp>(std::move(fields), id, 20, {}, {}, {}, {}, {},
                                                      {}, {}, {}, false, nullptr));
}

// As CUPTI's activities come from kineto.
KinetoEvent event_of(const std::string& name, libkineto::ActivityType type,
                     const std::shared_ptr<kineto::Result>& launched_by,
                     const std::string& metadata) {
  kineto::ExtraFields<kineto::EventType::Kineto> fields;
  fields.name_ = name;
  fields.duration_ns_ = 50;
  fields.correlation_id_ = 99;
  fields.activity_type_ = type;
  fields.linked_activity_ = launched_by;
  fields.metadata_json_ = metadata;
  return {kineto::Result::create(std::int64_t{100}, std::uint64_t{0},
                                 kineto::kineto::DeviceAndResource{0, 7}, std::move(fields)),
          false};
}

TEST(ProfilerRecording, ReadsTheActivitiesOfAGpu) {
  using libkineto::ActivityType;
  const auto launching = operator_of_host(5);
  const ProfilerResult result(
      0,
      {event_of("nvjet_hsh", ActivityType::CONCURRENT_KERNEL, launching,
                R"("device": 0, "stream": 7, "correlation": 99)"),
       event_of("Memcpy DtoD (Device -> Device)", ActivityType::GPU_MEMCPY, nullptr,
                "\"stream\": 7, \"bytes\": 4096, \"memory bandwidth (GB/s)\": 1.5"),
       event_of("Memset (Device)", ActivityType::GPU_MEMSET, nullptr, R"("bytes":32)"),
       event_of("forward", ActivityType::GPU_USER_ANNOTATION, nullptr, ""),
       event_of("cudaLaunchKernel", ActivityType::CUDA_RUNTIME, launching, ""),
       KinetoEvent(launching, false)},
      nullptr, {});
  const RecordedSteps steps = recorded_steps(result);
  ASSERT_EQ(steps.activities.size(), 3);
  const DeviceActivity& kernel = steps.activities[0];
  EXPECT_EQ(kernel.name, "nvjet_hsh");
  EXPECT_EQ(kernel.begin_ns, 100);
  EXPECT_EQ(kernel.end_ns, 150);
  EXPECT_EQ(kernel.launched_by, 5);
  EXPECT_EQ(kernel.bytes, 0);
  EXPECT_EQ(steps.activities[1].bytes, 4096);
  EXPECT_EQ(steps.activities[1].launched_by, 0);
  EXPECT_EQ(steps.activities[2].bytes, 32);
  ASSERT_EQ(steps.calls.size(), 1);
  EXPECT_EQ(steps.calls[0].id, 5);
  EXPECT_EQ(steps.calls[0].thread, 7);
}

}  // namespace
}  // namespace llm::plan
