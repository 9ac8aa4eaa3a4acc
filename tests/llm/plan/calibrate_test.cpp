// What `sherd bench --calibrate` measures, with its smallest models.

#include "llm/bench/calibrate.h"

#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "llm/bench/gpu_calibration.h"
#include "llm/plan/step_time.h"
#include "tests/llm/plan/small_runs.h"

namespace llm::bench {
namespace {

TEST(Calibrate, TimesEveryOperatorOfAStepAndWhatIsBesideThem) {
  std::vector<Reference> small = {references().at(0), references().at(3)};
  for (Reference& model : small) {
    model.layers = 1;
  }
  std::vector<std::string> said;
  const plan::Rates rates = calibrate(sherd::World::alone(), small,
                                      [&](const std::string& line) { said.push_back(line); });
  EXPECT_EQ(said.size(), 4);
  for (const std::string bits : {" float32", " 16 bits"}) {
    for (const std::string kind :
         {"linear", "linear_backward", "attention", "attention_backward", "rms_norm", "layer_norm",
          "swiglu_linear", "bias_gelu", "rotary", "embedding", "embedding_backward",
          "linear_cross_entropy", "linear_cross_entropy_backward", plan::step_kind::kOptimizer,
          plan::step_kind::kClip}) {
      EXPECT_GT(rates.seconds({kind + bits, 1e6}), 0) << kind << bits;
    }
  }
  const plan::PlannedRun run = plan::planned_run("llama", 1, sherd::Strategy::FullShard);
  EXPECT_GT(plan::plan_step_time(run, rates, {}).step_seconds, 1e-4);
}

// On a CPU, since no GPU need be here: that each kernel of the table is measured, and how.
TEST(Calibrate, MeasuresEveryKernelOfTheTable) {
  const KernelSizes tiny{.tokens = 64,
                         .width = 64,
                         .inner = 128,
                         .heads = 4,
                         .key_heads = 2,
                         .head = 16,
                         .vocabulary = 512,
                         .logit_rows = 16,
                         .copied_bytes = 1 << 20};
  plan::GpuRates none = plan::h200_rates({plan::StepConstant::AdamWShare});
  none.share_of_copy.clear();
  none.products.clear();
  none.attention.clear();
  std::vector<std::string> said;
  const auto backend = sherd::ops::backend_of(at::empty({0}, at::kBFloat16));
  const plan::GpuRates rates =
      calibrate_kernels(backend, c10::Device(c10::kCPU), none, tiny,
                        [&](const std::string& line) { said.push_back(line); });
  EXPECT_EQ(said.size(), 5);
  EXPECT_GT(rates.copy_bytes_per_second, 1e6);
  EXPECT_LT(rates.copy_bytes_per_second, 1e12);
  EXPECT_GT(rates.launch_seconds, 0);
  for (const auto& [kernel, name] : plan::kKernelNames) {
    using enum plan::Kernel;
    const bool is_product = kernel == Product || kernel == ProductTowardsInput ||
                            kernel == ProductTowardsWeight || kernel == Logits;
    if (is_product) {
      EXPECT_GT(rates.products.at(kernel).teraflops, 0) << name;
    } else if (kernel != Copy && kernel != Attention && kernel != AttentionBackward) {
      EXPECT_GT(rates.share_of_copy.at(kernel), 0) << name;
    }
  }
  EXPECT_EQ(rates.products.at(plan::Kernel::Product).n, 128);
  for (const auto kernel :
       {sherd::ops::AttentionKernel::Flash, sherd::ops::AttentionKernel::Cudnn}) {
    ASSERT_EQ(rates.attention.at(kernel).size(), 3);
    EXPECT_EQ(rates.attention.at(kernel).front().tokens, 16);
    EXPECT_GT(rates.attention.at(kernel).back().backward, 0);
  }
}

}  // namespace
}  // namespace llm::bench
