// Tables of device time. No test here ran on a GPU: names and times of activities are written by
// hand, in the form in which CUPTI gives them to LibTorch's profiler.

#include "llm/plan/device_table.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <stdexcept>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace llm::plan {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr std::int64_t kMs = 1'000'000;  // in nanoseconds
constexpr DeviceLimits kHandLimits{
    .operations_per_second = 1e12, .bytes_per_second = 1e9, .host_bytes_per_second = 1e8};

const char* const kNormKernel =
    "void sherd::ops::cuda::norm<__nv_bfloat16, 256, 1, false>(sherd::ops::cuda::NormRows<"
    "__nv_bfloat16>)";
const char* const kProductKernel = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT";
const char* const kFillKernel =
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)";

DeviceActivity activity(const std::string& name, std::int64_t begin_ms, std::int64_t end_ms,
                        std::uint64_t launched_by = 0, double bytes = 0) {
  return {name, begin_ms * kMs, end_ms * kMs, launched_by, bytes};
}

const DeviceGroup& row(const DeviceTable& table, KernelGroup group) {
  const auto found = std::find_if(table.groups.begin(), table.groups.end(),
                                  [&](const DeviceGroup& one) { return one.group == group; });
  if (found == table.groups.end()) {
    throw std::runtime_error(std::string("no row of ") + name_of(group));
  }
  return *found;
}

TEST(KernelGroups, AreToldFromNamesOfKernels) {
  const std::pair<const char*, KernelGroup> kNames[] = {
      {kProductKernel, KernelGroup::Products},
      {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas",
       KernelGroup::Products},
      {"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x4_tn_align8"
       ">(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x4_tn_align8::Params)",
       KernelGroup::Products},
      {"void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)",
       KernelGroup::Products},
      {"void gemv2T_kernel_val<int, int, float, float, float, float, 128>(float)",
       KernelGroup::Products},
      {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 32, 4, "
       "cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)",
       KernelGroup::Attention},
      {"fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<"
       "cutlass::bfloat16_t>::Params)",
       KernelGroup::Attention},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_32_kernel0_0",
       KernelGroup::Attention},
      {"void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(float*)",
       KernelGroup::Attention},
      {kNormKernel, KernelGroup::Norms},
      {"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
       KernelGroup::Norms},
      {"void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*)",
       KernelGroup::CrossEntropy},
      {"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", KernelGroup::Nccl},
      {kFillKernel, KernelGroup::ATen},
      {"void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<long>(long)", KernelGroup::ATen},
      {"void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 2>(float*)",
       KernelGroup::ATen},
      {"Memcpy HtoD (Pinned -> Device)", KernelGroup::FromHost},
      {"Memcpy DtoH (Device -> Pageable)", KernelGroup::ToHost},
      {"Memcpy DtoD (Device -> Device)", KernelGroup::DeviceCopies},
      {"Memcpy PtoP (Device -> Device)", KernelGroup::DeviceCopies},
      {"Memset (Device)", KernelGroup::Memset},
      {"my_kernel(int)", KernelGroup::Other},
      {"", KernelGroup::Other}};
  for (const auto& [name, group] : kNames) {
    EXPECT_STREQ(name_of(group_of(name)), name_of(group)) << name;
  }
}

TEST(KernelGroups, AreToldFromNamesThatAreMangledOrCut) {
  EXPECT_EQ(group_of("_ZN5sherd3ops4cuda4normI13__nv_bfloat16Li256ELi1ELb0EEEvNS1_8NormRowsIT_EE"),
            KernelGroup::Norms);
  EXPECT_EQ(group_of("_ZN5sherd4cuda5adamwINS0_12WholeMastersEffLi256EEEvNS0_4FlatE"),
            KernelGroup::AdamW);
  EXPECT_EQ(group_of("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE"),
            KernelGroup::ATen);
  EXPECT_EQ(group_of("void sherd::ops::cuda::swiglu_backw"), KernelGroup::Activations);
  EXPECT_EQ(group_of("void sherd::cuda::sum_in_rank_order<float, __nv_bf"), KernelGroup::Sums);
}

// What a kernel's arguments are named after is no reason to count it there.
TEST(KernelGroups, DoNotDependOnArgumentsOfSherdsKernels) {
  EXPECT_EQ(group_of("void sherd::cuda::adamw<sherd::cuda::SplitMasters, float, 256>(float)"),
            KernelGroup::AdamW);
  EXPECT_EQ(group_of("void sherd::cuda::to_bfloat16<256>(sherd::cuda::norm)"), KernelGroup::Sums);
}

// Whoever adds a kernel finds it here when it is counted as unknown.
TEST(KernelGroups, HaveEachOfSherdsKernels) {
  const std::filesystem::path root = SHERD_TEST_SOURCE_DIR;
  const std::regex declared(R"(GPU_KERNEL\([^)]*\)\s*(\w+)\()");
  int found = 0;
  for (const char* const folder : {"ops/cuda/kernels", "src/kernels/cuda/kernels"}) {
    for (const auto& entry : std::filesystem::directory_iterator(root / folder)) {
      std::ifstream file(entry.path());
      const std::string text(std::istreambuf_iterator<char>(file), {});
      for (std::sregex_iterator match(text.begin(), text.end(), declared), end; match != end;
           ++match) {
        const std::string name = (*match)[1];
        EXPECT_NE(group_of("void sherd::cuda::" + name + "<float, 256>(float)"), KernelGroup::Other)
            << entry.path() << ": " << name
            << " has no group: add it to kOwnKernels in llm/train/device_table.cpp";
        ++found;
      }
    }
  }
  EXPECT_GE(found, 20);
}

// Two steps of 10 ms each: products on one stream, a copy from the host beside them.
TEST(DeviceTable, SumsWhatRanPerStep) {
  RecordedSteps recorded;
  for (const std::int64_t step : {0, 10}) {
    recorded.activities.push_back(activity(kProductKernel, step, step + 4));
    recorded.activities.push_back(activity(kNormKernel, step + 4, step + 5));
    recorded.activities.push_back(activity(kNormKernel, step + 5, step + 6));
    recorded.activities.push_back(
        activity("Memcpy HtoD (Pinned -> Device)", step + 5, step + 7, 0, 150'000));
    recorded.activities.push_back(activity("my_kernel", step + 9, step + 10));
  }
  const DeviceTable table = device_table(recorded, 2, kHandLimits);
  EXPECT_EQ(table.problem, "");
  EXPECT_DOUBLE_EQ(table.step_seconds, 0.010);
  EXPECT_DOUBLE_EQ(table.idle_seconds, 0.003);  // the copy computes nothing
  EXPECT_DOUBLE_EQ(table.sum_seconds, 0.009);
  EXPECT_DOUBLE_EQ(table.busy_seconds, 0.008);
  ASSERT_EQ(table.groups.size(), 4);
  EXPECT_EQ(table.groups[0].group, KernelGroup::Products);  // the longest first
  const DeviceGroup& norms = row(table, KernelGroup::Norms);
  EXPECT_DOUBLE_EQ(norms.calls, 2);
  EXPECT_DOUBLE_EQ(norms.seconds, 0.002);
  EXPECT_DOUBLE_EQ(norms.share_of_step, 0.2);
  EXPECT_FALSE(norms.bytes || norms.operations || norms.share_of_limit);  // nobody knows
  const DeviceGroup& copies = row(table, KernelGroup::FromHost);
  EXPECT_DOUBLE_EQ(copies.bytes.value(), 150'000);
  EXPECT_DOUBLE_EQ(copies.share_of_limit.value(), 0.75);
  ASSERT_EQ(table.kernels.size(), 4);
  EXPECT_EQ(table.kernels[0].group, KernelGroup::Products);  // the longest first
  const auto mine = std::find_if(table.kernels.begin(), table.kernels.end(),
                                 [](const auto& kernel) { return kernel.name == "my_kernel"; });
  ASSERT_NE(mine, table.kernels.end());
  EXPECT_EQ(mine->group, KernelGroup::Other);
  EXPECT_EQ(mine->launched_by, "");
  EXPECT_DOUBLE_EQ(mine->calls, 1);
  EXPECT_DOUBLE_EQ(mine->seconds, 0.001);
}

TEST(DeviceTable, CountsOverlapOnceInShares) {
  const RecordedSteps recorded{
      .activities = {activity(kProductKernel, 0, 6), activity(kProductKernel, 2, 8),
                     activity(kProductKernel, 3, 4), activity(kNormKernel, 7, 10)},
      .calls = {}};
  const DeviceTable table = device_table(recorded, 1, {});
  EXPECT_DOUBLE_EQ(row(table, KernelGroup::Products).seconds, 0.013);
  EXPECT_DOUBLE_EQ(row(table, KernelGroup::Products).share_of_step, 0.8);
  EXPECT_DOUBLE_EQ(table.sum_seconds, 0.016);
  EXPECT_DOUBLE_EQ(table.busy_seconds, 0.010);
  EXPECT_DOUBLE_EQ(table.idle_seconds, 0);
}

TEST(DeviceTable, HasKernelsOfNoLength) {
  const DeviceTable one = device_table({{activity(kNormKernel, 5, 5)}, {}}, 1, kHandLimits);
  EXPECT_DOUBLE_EQ(row(one, KernelGroup::Norms).calls, 1);
  EXPECT_DOUBLE_EQ(one.step_seconds, 0);
  EXPECT_DOUBLE_EQ(row(one, KernelGroup::Norms).share_of_step, 0);
  const DeviceTable two = device_table(
      {{activity(kNormKernel, 0, 0), activity(kNormKernel, 2, 1)}, {}}, 1, kHandLimits);
  EXPECT_DOUBLE_EQ(row(two, KernelGroup::Norms).seconds, 0);  // nor of less
  for (const std::string& line : lines_of(two)) {
    EXPECT_THAT(line, testing::Not(HasSubstr("nan")));
  }
}

// A norm that calls LibTorch's operator, a linear layer with two products, and a second thread at
// the same time.
RecordedSteps step_with_operators() {
  RecordedSteps recorded;
  recorded.calls = {{.name = "sherd::rms_norm",
                     .id = 1,
                     .thread = 1,
                     .begin_ns = 0,
                     .end_ns = 50,
                     .moved_bytes = 1e6},
                    {.name = "aten::fill_", .id = 2, .thread = 1, .begin_ns = 10, .end_ns = 20},
                    {.name = "autograd::engine::evaluate_function: CppFunction",
                     .id = 3,
                     .thread = 1,
                     .begin_ns = 60,
                     .end_ns = 200},
                    {.name = "sherd::linear_backward",
                     .id = 4,
                     .thread = 1,
                     .begin_ns = 70,
                     .end_ns = 190,
                     .operations = 6e9},
                    {.name = "aten::mm", .id = 5, .thread = 1, .begin_ns = 80, .end_ns = 100},
                    {.name = "aten::mm", .id = 6, .thread = 1, .begin_ns = 110, .end_ns = 130},
                    {.name = "aten::fill_", .id = 7, .thread = 2, .begin_ns = 15, .end_ns = 16}};
  recorded.activities = {activity(kNormKernel, 0, 1, 1), activity(kFillKernel, 1, 2, 2),
                         activity(kProductKernel, 2, 6, 5), activity(kProductKernel, 6, 10, 6),
                         activity(kFillKernel, 10, 12, 7)};
  return recorded;
}

TEST(DeviceTable, JoinsKernelsWithTheOperatorsThatLaunchedThem) {
  const DeviceTable table = device_table(step_with_operators(), 1, kHandLimits);
  const DeviceGroup& norms = row(table, KernelGroup::Norms);
  EXPECT_DOUBLE_EQ(norms.calls, 2);  // the fill is part of the norm
  EXPECT_DOUBLE_EQ(norms.bytes.value(), 1e6);
  EXPECT_DOUBLE_EQ(norms.share_of_limit.value(), 1e6 / 0.002 / 1e9);
  const DeviceGroup& products = row(table, KernelGroup::Products);
  EXPECT_DOUBLE_EQ(products.operations.value(), 6e9);  // of one call, not of each kernel
  EXPECT_DOUBLE_EQ(products.share_of_limit.value(), 6e9 / 0.008 / 1e12);
  EXPECT_FALSE(products.bytes);
  EXPECT_DOUBLE_EQ(row(table, KernelGroup::ATen).calls, 1);  // that of no operator of Sherd's
}

// As a norm that the backward of a linear layer computes again.
TEST(DeviceTable, JoinsKernelsWithTheInnermostOfNestedOperators) {
  RecordedSteps recorded;
  recorded.calls = {
      {.name = "sherd::linear_backward", .id = 1, .thread = 1, .end_ns = 90, .operations = 4e9},
      {.name = "sherd::rms_norm_again",
       .id = 2,
       .thread = 1,
       .begin_ns = 10,
       .end_ns = 20,
       .moved_bytes = 1e6},
      {.name = "aten::mm", .id = 3, .thread = 1, .begin_ns = 30, .end_ns = 40}};
  recorded.activities = {activity(kNormKernel, 0, 2, 2), activity(kProductKernel, 2, 6, 3)};
  const DeviceTable table = device_table(recorded, 1, kHandLimits);
  EXPECT_DOUBLE_EQ(row(table, KernelGroup::Norms).bytes.value(), 1e6);
  EXPECT_DOUBLE_EQ(row(table, KernelGroup::Products).operations.value(), 4e9);
}

TEST(DeviceTable, LeavesAmountsOutWhereTooLittleIsKnown) {
  RecordedSteps recorded = step_with_operators();
  recorded.activities.push_back(activity(kProductKernel, 12, 13));  // 8 of 9 ms are known
  const DeviceTable table = device_table(recorded, 1, kHandLimits);
  EXPECT_FALSE(row(table, KernelGroup::Products).operations);
  EXPECT_FALSE(row(table, KernelGroup::Products).share_of_limit);
  recorded.activities.back().end_ns = recorded.activities.back().begin_ns + kMs / 2;
  const DeviceTable enough = device_table(recorded, 1, kHandLimits);
  EXPECT_DOUBLE_EQ(row(enough, KernelGroup::Products).share_of_limit.value(), 6e9 / 0.008 / 1e12);
}

TEST(DeviceTable, HasNoShareOfALimitThatIsNotKnown) {
  const DeviceTable table = device_table(step_with_operators(), 1, {});
  EXPECT_TRUE(row(table, KernelGroup::Products).operations);
  EXPECT_FALSE(row(table, KernelGroup::Products).share_of_limit);
}

// As a captured graph has them: no operator launched them.
TEST(DeviceTable, HasKernelsOfGraphsWithoutAmounts) {
  RecordedSteps recorded = step_with_operators();
  recorded.calls = {{.name = "aten::add_", .id = 9, .thread = 1, .begin_ns = 0, .end_ns = 9}};
  for (DeviceActivity& one : recorded.activities) {
    one.launched_by = 0;
  }
  const DeviceTable table = device_table(recorded, 1, kHandLimits);
  EXPECT_DOUBLE_EQ(row(table, KernelGroup::Products).seconds, 0.008);
  EXPECT_FALSE(row(table, KernelGroup::Products).operations);
  EXPECT_FALSE(row(table, KernelGroup::Norms).bytes);
}

TEST(DeviceTable, TakesAmountsThatNoOperatorHas) {
  const RecordedSteps recorded{
      .activities = {activity("void sherd::cuda::adamw<float, 256>(float)", 0, 2),
                     activity("void sherd::cuda::adamw<float, 256>(float)", 2, 4)},
      .calls = {}};
  const DeviceTable table =
      device_table(recorded, 2, kHandLimits, {{KernelGroup::AdamW, 1e6}, {KernelGroup::Norms, 1}});
  ASSERT_EQ(table.groups.size(), 1);  // no row for what did not run
  EXPECT_DOUBLE_EQ(table.groups[0].bytes.value(), 1e6);
  EXPECT_DOUBLE_EQ(table.groups[0].share_of_limit.value(), 1e6 / 0.002 / 1e9);
}

TEST(DeviceTable, SaysWhyThereIsNone) {
  RecordedSteps recorded = step_with_operators();
  recorded.activities.clear();
  const DeviceTable table = device_table(recorded, 3, kHandLimits);
  EXPECT_TRUE(table.groups.empty());
  ASSERT_EQ(lines_of(table).size(), 1);
  EXPECT_THAT(lines_of(table)[0],
              testing::AllOf(HasSubstr("no table of device time: the profiler recorded nothing"),
                             HasSubstr("NVreg_RestrictProfilingToAdminUsers"),
                             HasSubstr("built without CUPTI"), HasSubstr("KINETO_LOG_LEVEL=0")));
  const auto json = json_of(table);
  EXPECT_TRUE(json.at("device_groups").empty());
  EXPECT_TRUE(json.at("device_step_seconds").is_null());
  EXPECT_TRUE(json.at("device_idle_seconds").is_null());
  EXPECT_EQ(json.at("device_problem"), table.problem);
}

// A kernel cannot end before it is launched.
TEST(DeviceTable, RefusesARecordingThatEndsTooEarly) {
  RecordedSteps recorded = step_with_operators();
  recorded.calls.push_back({.name = "aten::ones", .id = 8, .thread = 1, .begin_ns = 13 * kMs});
  EXPECT_EQ(device_table(recorded, 1, {}).problem, "");  // which may launch nothing
  recorded.calls.push_back({.name = "sherd::linear", .id = 9, .thread = 1, .begin_ns = 13 * kMs});
  EXPECT_THAT(device_table(recorded, 1, {}).problem,
              testing::AllOf(HasSubstr("not the kernels that they launched"),
                             HasSubstr("fewer micro-batches")));
}

TEST(DeviceTable, ShowsTheLongestKernelsOfEachGroup) {
  RecordedSteps recorded;
  for (int i = 1; i <= 7; ++i) {
    recorded.activities.push_back(activity(std::string(200, static_cast<char>('a' + i)), 0, i));
  }
  const DeviceTable table = device_table(recorded, 1, {});
  ASSERT_EQ(table.kernels.size(), 6);
  EXPECT_EQ(table.kernels[0].name[0], 'h');
  EXPECT_EQ(table.kernels[0].name.size(), 200);
  EXPECT_THAT(lines_of(table), Contains("  other: 7.000 ms, 1.0 calls: " + std::string(100, 'h')));
}

TEST(DeviceTable, IsPrintedForPeopleAndAsJson) {
  const DeviceTable table = device_table(step_with_operators(), 1, kHandLimits);
  std::string text;
  for (const std::string& line : lines_of(table)) {
    text += line + "\n";
  }
  EXPECT_EQ(text,
            "device time per step, the mean of 1 recorded: 12.000 ms\n"
            "  group                      calls          ms   of step         amount    of limit\n"
            "  products                     2.0       8.000    66.7 %    0.006 TFLOP      75.0 %\n"
            "  norms                        2.0       2.000    16.7 %       0.001 GB      50.0 %\n"
            "  other ATen                   1.0       2.000    16.7 %\n"
            "  idle                                   0.000     0.0 %\n"
            "  sum of all rows but idle: 12.000 ms; time in which any of them ran: 12.000 ms\n");
  const auto json = json_of(table);
  EXPECT_EQ(json.at("device_step_seconds"), 0.012);
  EXPECT_EQ(json.at("device_idle_seconds"), 0.0);
  EXPECT_TRUE(json.at("device_problem").is_null());
  const auto& norms = json.at("device_groups").at(1);
  EXPECT_EQ(norms.at("group"), "norms");
  EXPECT_EQ(norms.at("calls"), 2.0);
  EXPECT_EQ(norms.at("bytes"), 1e6);
  EXPECT_TRUE(norms.at("operations").is_null());
  EXPECT_TRUE(json.at("device_groups").at(2).at("share_of_limit").is_null());
}

TEST(DeviceLimits, AreThoseOfAKnownDevice) {
  const Device& known = device_of_name("h200-141g");
  const DeviceLimits limits = limits_of(known, c10::kBFloat16);
  GpuRates rates = shipped_rates_of(known);
  EXPECT_EQ(limits.operations_per_second,
            rates.products.at(Kernel::ProductTowardsInput).teraflops * 1e12);
  EXPECT_EQ(limits.bytes_per_second, rates.copy_bytes_per_second);
  EXPECT_EQ(limits.host_bytes_per_second, rates.pinned_bytes_per_second);
  EXPECT_EQ(limits_of(known, c10::kFloat).operations_per_second, 0);
  sherd::Gpu unknown;
  unknown.name = "NVIDIA X1";
  EXPECT_EQ(limits_of(device_of_gpu(unknown), c10::kBFloat16).bytes_per_second,
            0);  // not those of an A100
  rates.products[Kernel::Logits].teraflops = 777;
  rates.copy_bytes_per_second = 5e12;
  rates.pinned_bytes_per_second = 60e9;
  const DeviceLimits own = limits_of(device_of_gpu(unknown), c10::kBFloat16, rates);
  EXPECT_EQ(own.operations_per_second, 777e12);
  EXPECT_EQ(own.bytes_per_second, 5e12);
  EXPECT_EQ(own.host_bytes_per_second, 60e9);
}

}  // namespace
}  // namespace llm::plan
