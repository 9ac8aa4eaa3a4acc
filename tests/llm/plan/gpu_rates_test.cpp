// Tables of GPUs: what their figures say of a step, and plans beside steps that were measured.

#include "llm/plan/gpu_rates.h"

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <ostream>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "benchmarks/gpu/measured_rows.h"
#include "llm/plan/operator_watch.h"
#include "llm/plan/rates.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "tests/llm/plan/small_runs.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace sherd::benchmarks {

// What GoogleTest prints of a parameter.
static void PrintTo(const MeasuredRow& row, std::ostream* out) {
  *out << row.name;
}

}  // namespace sherd::benchmarks

namespace llm::plan {
namespace {

using sherd::benchmarks::measured_rows;
using sherd::benchmarks::MeasuredRow;
using sherd::ops::AttentionKernel;

constexpr double kBytesOfGiB = 1024.0 * 1024.0 * 1024.0;

class StepsOnAnH200 : public testing::TestWithParam<MeasuredRow> {};
INSTANTIATE_TEST_SUITE_P(Of20261126, StepsOnAnH200, testing::ValuesIn(measured_rows()),
                         [](const auto& row) { return "Row" + std::to_string(row.index); });

TEST_P(StepsOnAnH200, TakeWhatIsPlanned) {
  const MeasuredRow& row = GetParam();
  const GpuRates rates = h200_rates();
  const auto plan = plan_of(row, SHERD_TEST_SOURCE_DIR, sherd::benchmarks::as_that_day, rates);
  EXPECT_NEAR(static_cast<double>(plan.memory.peak_bytes) / kBytesOfGiB / row.peak_gib, 1, 0.05)
      << row.name;
  EXPECT_NEAR(seconds_that_day(row, SHERD_TEST_SOURCE_DIR, rates) / row.step_seconds, 1, 0.10)
      << row.name;
}

// Without what its own figures gave: nothing in the table was fitted to one row.
TEST_P(StepsOnAnH200, AreNearWithoutTheirOwnFigures) {
  const MeasuredRow& row = GetParam();
  EXPECT_NEAR(seconds_that_day(row, SHERD_TEST_SOURCE_DIR, h200_rates(row.own_constants)) /
                  row.step_seconds,
              1, 0.125)
      << row.name;
}

TEST(StepsOnAnH200, AreFasterByTheDefaultsOfNow) {
  const auto seconds = [](const MeasuredRow& row) {
    return plan_of(
               row, SHERD_TEST_SOURCE_DIR, [](config::RunConfig&) {}, h200_rates())
        .time.step_seconds;
  };
  EXPECT_LE(seconds(measured_rows().at(0)), 0.78);
  EXPECT_LE(seconds(measured_rows().at(4)), 0.075);
}

TEST(GpuRates, OfAttentionGrowWithItsDocuments) {
  const GpuRates rates = h200_rates();
  const auto teraflops = [&](AttentionKernel kernel, double tokens, bool is_backward = false) {
    return rates.attention_rate(kernel, tokens, is_backward) / 1e12;
  };
  EXPECT_NEAR(teraflops(AttentionKernel::Flash, 8192), 287, 0.1);
  EXPECT_NEAR(teraflops(AttentionKernel::Flash, 8192, true), 286, 0.1);
  EXPECT_NEAR(teraflops(AttentionKernel::Cudnn, 8192), 644, 0.1);
  EXPECT_NEAR(teraflops(AttentionKernel::Cudnn, 3072, true), 422, 0.1);  // between two lengths
  EXPECT_NEAR(teraflops(AttentionKernel::Cudnn, 131072), 644, 0.1);
  // Of a document of four tiles, 10 of 16 are computed, where 8 count.
  EXPECT_NEAR(teraflops(AttentionKernel::Flash, 512), 287 * (1 + 128.0 / 8192) / 1.25, 0.1);
}

TEST(GpuRates, OfAProductAreItsOperationsBesideItsBytes) {
  const GpuRates rates = h200_rates();
  constexpr double kTokens = 8192, kWidth = 4096, kInner = 14'336;
  const auto product = [](Kernel kernel, double m, double n, double k) {
    return KernelCall{kernel, 2 * m * n * k, 2 * (m * k + k * n + m * n)};
  };
  const KernelCall gate = product(Kernel::Product, kTokens, kInner, kWidth);
  EXPECT_NEAR(gate.operations / rates.seconds(gate) / 1e12, 691, 0.1);
  const KernelCall logits = product(Kernel::Logits, 2048, 128'256, kWidth);
  EXPECT_NEAR(logits.operations / rates.seconds(logits) / 1e12, 671, 0.1);
  // Rows of 1024 values: as many bytes for a quarter of the operations.
  const KernelCall narrow = product(Kernel::Product, kTokens, kInner, 1024);
  EXPECT_LT(narrow.operations / rates.seconds(narrow) / 1e12, 640);
}

// Of operators on meta, by kernel.
std::map<Kernel, KernelCall> kernels_in(const std::function<void()>& work) {
  std::map<Kernel, KernelCall> found;
  const OperatorWatch watch([&](const OperatorCall& call) {
    for (const KernelCall& kernel : call.kernels) {
      if (kernel.kernel != Kernel::Copy) {
        found[kernel.kernel] = kernel;
      }
    }
  });
  work();
  return found;
}

TEST(Kernels, OfTheLossRunOncePerChunk) {
  constexpr double kRows = 1024, kWidth = 32, kVocabulary = 1000, kElement = 2;
  const auto on_meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor hidden = at::empty({1024, 32}, on_meta).requires_grad_();
  const at::Tensor weight = at::empty({1000, 32}, on_meta).requires_grad_();
  const at::Tensor targets = at::zeros({1024}, on_meta.dtype(at::kLong));
  const auto of_chunks = [&](std::int64_t tokens) {
    return kernels_in(
        [&] { sherd::ops::linear_cross_entropy(hidden, weight, targets, tokens).backward(); });
  };
  for (const double chunks : {1.0, 4.0}) {
    const double rows = kRows / chunks;
    const auto found = of_chunks(static_cast<std::int64_t>(rows));
    for (const Kernel kernel :
         {Kernel::Logits, Kernel::ProductTowardsInput, Kernel::ProductTowardsWeight}) {
      EXPECT_EQ(found.at(kernel).times, chunks);
      EXPECT_EQ(found.at(kernel).operations, 2 * rows * kWidth * kVocabulary);
      EXPECT_EQ(found.at(kernel).bytes,
                kElement * (rows * (kWidth + kVocabulary) + kWidth * kVocabulary));
    }
    EXPECT_EQ(found.at(Kernel::CrossEntropy).bytes, kElement * rows * kVocabulary);
    EXPECT_EQ(found.at(Kernel::CrossEntropyBackward).bytes, 2 * kElement * rows * kVocabulary);
  }
}

TEST(Kernels, OfTheLossOverAFrozenHeadHaveNoProductTowardsIt) {
  const auto on_meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor hidden = at::empty({1024, 32}, on_meta).requires_grad_();
  const at::Tensor weight = at::empty({1000, 32}, on_meta);
  const at::Tensor targets = at::zeros({1024}, on_meta.dtype(at::kLong));
  for (const std::int64_t tokens : {1024, 256}) {
    const auto found = kernels_in(
        [&] { sherd::ops::linear_cross_entropy(hidden, weight, targets, tokens).backward(); });
    EXPECT_TRUE(found.contains(Kernel::ProductTowardsInput)) << tokens;
    EXPECT_FALSE(found.contains(Kernel::ProductTowardsWeight)) << tokens;
  }
}

TEST(Kernels, OfALinearLayerWithABiasSumItsGradient) {
  const auto on_meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor input = at::empty({100, 32}, on_meta).requires_grad_();
  const at::Tensor weight = at::empty({64, 32}, on_meta).requires_grad_();
  const at::Tensor bias = at::empty({64}, on_meta).requires_grad_();
  const auto found = [&](const std::optional<at::Tensor>& with) {
    return kernels_in([&] { sherd::ops::linear(input, weight, with).sum().backward(); });
  };
  EXPECT_EQ(found(bias).at(Kernel::ColumnSums).bytes, 2.0 * 100 * 64);
  EXPECT_FALSE(found(std::nullopt).contains(Kernel::ColumnSums));
}

TEST(GpuRates, OfALaunchAreNoLessThanTheHostTakes) {
  GpuRates rates = h200_rates();
  const OperatorCall call{.kind = "add", .kernels = {{.bytes = 1, .times = 3}}};
  EXPECT_DOUBLE_EQ(rates.seconds(call), 3 * rates.launch_seconds);
  rates.launch_seconds = 0;
  EXPECT_LT(rates.seconds(call), 1e-9);
}

TEST(GpuRates, OfOtherGpusAreScaled) {
  const GpuRates h200 = shipped_rates_of(device_of_name("h200-141g"));
  const GpuRates h100 = shipped_rates_of(device_of_name("h100-80g"));
  const GpuRates a100 = shipped_rates_of(device_of_name("a100-80g"));
  EXPECT_NEAR(h100.copy_bytes_per_second / h200.copy_bytes_per_second, 3.0 / 4.3, 1e-9);
  EXPECT_EQ(h100.products.at(Kernel::Product).teraflops, 691);
  EXPECT_NEAR(a100.products.at(Kernel::Product).teraflops, 691 * 252.0 / 798, 1e-9);
  EXPECT_NEAR(a100.attention_rate(AttentionKernel::Flash, 8192, false) / 1e12, 287 * 252.0 / 798,
              1e-6);
  EXPECT_EQ(a100.pinned_bytes_per_second, 25e9);
  EXPECT_THAT(h100.source,
              testing::HasSubstr("scaled from an H200, 2026-11-26: products by 1, memory by 0.7"));
}

TEST(GpuRates, WithoutAConstantHaveWhatWasAssumedBefore) {
  const GpuRates all = h200_rates();
  EXPECT_NEAR(all.share_of_copy.at(Kernel::AdamW), 0.715, 0.001);
  EXPECT_NEAR(all.launch_seconds, 4.4e-6, 0.1e-6);
  EXPECT_NEAR(all.pinned_bytes_per_second, 48e9, 0.1e9);
  const GpuRates none =
      h200_rates({StepConstant::AdamWShare, StepConstant::LaunchCost, StepConstant::LinkToHost});
  EXPECT_FALSE(none.share_of_copy.contains(Kernel::AdamW));
  EXPECT_EQ(none.launch_seconds, 0);
  EXPECT_EQ(none.pinned_bytes_per_second, 50e9);
}

TEST(AttentionOn, IsWhatTheDeviceAndTheShapeAllow) {
  using enum AttentionKernel;
  MicroBatch batch{{512, 512}, {512, 512}};
  const auto on = [&](const char* device, AttentionKernel asked, const char* family,
                      c10::ScalarType dtype = c10::kBFloat16, std::int64_t head = 128,
                      bool deterministic = false) {
    model::DecoderConfig shape = shape_of(family).shape;
    shape.head_size = head;
    return attention_on(device_of_name(device), asked, shape, dtype, batch, deterministic);
  };
  EXPECT_EQ(on("h200-141g", Auto, "llama"), Cudnn);
  EXPECT_EQ(on("h100-80g", Auto, "llama"), Cudnn);
  EXPECT_EQ(on("a100-80g", Auto, "llama"), Flash);
  EXPECT_EQ(on("a100-80g", Cudnn, "llama"), Cudnn);
  EXPECT_EQ(on("h200-141g", Auto, "bloom"), Flash);
  EXPECT_EQ(on("h200-141g", Flash, "llama"), Flash);
  EXPECT_EQ(on("h200-141g", Plain, "llama"), Plain);
  EXPECT_EQ(on("h200-141g", Auto, "llama", c10::kFloat), Plain);
  EXPECT_EQ(on("h200-141g", Auto, "llama", c10::kBFloat16, 192), Flash);
  EXPECT_EQ(on("h200-141g", Auto, "llama", c10::kBFloat16, 320), Plain);
  EXPECT_EQ(on("h200-141g", Auto, "llama", c10::kBFloat16, 68), Plain);
  EXPECT_EQ(on("h200-141g", Auto, "bloom", c10::kBFloat16, 68), Plain);
  EXPECT_EQ(on("h200-141g", Auto, "bloom", c10::kBFloat16, 248), Flash);
  EXPECT_EQ(on("h200-141g", Auto, "bloom", c10::kBFloat16, 256), Plain);
  EXPECT_EQ(on("h200-141g", Auto, "llama", c10::kBFloat16, 128, /*deterministic=*/true), Flash);
  EXPECT_EQ(on("h200-141g", Cudnn, "llama", c10::kBFloat16, 128, /*deterministic=*/true), Flash);
  model::DecoderConfig capped = shape_of("llama").shape;
  capped.head_size = 128;
  capped.score_cap = 50;
  EXPECT_EQ(attention_on(device_of_name("h200-141g"), Auto, capped, c10::kBFloat16, batch), Plain);
  batch.sample_tokens.back() = 500;
  EXPECT_EQ(on("h200-141g", Auto, "llama"), Flash);
  batch.sample_tokens.back() = 32'769;
  EXPECT_EQ(on("h200-141g", Auto, "llama"), Flash);
  EXPECT_EQ(on("h200-141g", Auto, "bloom"), Plain);
}

TEST(GpuRates, AreTheSameOnceTheyWereKept) {
  const sherd::test::TempFolder folder;
  setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  EXPECT_FALSE(load_gpu_rates("NVIDIA RTX 6000"));
  const std::string path = save_gpu_rates("NVIDIA RTX 6000", h200_rates());
  EXPECT_THAT(path, testing::EndsWith("NVIDIA-RTX-6000.json"));
  EXPECT_EQ(json_of(load_gpu_rates("NVIDIA RTX 6000").value()), json_of(h200_rates()));
  for (const char* const part :
       {"products_m_n_k_teraflops", "attention_tokens_forward_backward_teraflops"}) {
    auto file = json_of(h200_rates());
    file["format"] = 1;
    file[part].erase(file[part].begin());  // without one of its figures a plan would be wrong
    std::ofstream(path) << file;
    sherd::test::expect_error([] { (void)load_gpu_rates("NVIDIA RTX 6000"); },
                              sherd::ExitCode::BadData, {path, "Remove it"});
  }
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace llm::plan
