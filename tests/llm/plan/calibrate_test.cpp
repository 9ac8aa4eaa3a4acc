// What `sherd bench --calibrate` measures, with its smallest models.

#include "llm/bench/calibrate.h"

#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "llm/bench/gpu_calibration.h"
#include "llm/plan/step_time.h"
#include "tests/llm/plan/small_runs.h"
#include "tests/support/expect_error.h"

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

using sherd::ops::AttentionKernel;

const sherd::ops::Backend& on_cpu() {
  static const sherd::ops::Backend backend = sherd::ops::backend_of(at::empty({0}, at::kBFloat16));
  return backend;
}

// As a GPU answers that has flash attention and no cuDNN.
sherd::ops::AttentionOutput by_flash(const sherd::ops::AttentionInputs& inputs) {
  sherd::ops::AttentionOutput output = on_cpu().attention(inputs);
  output.kernel = AttentionKernel::Flash;
  return output;
}
sherd::ops::AttentionGradients back_by_flash(const sherd::ops::AttentionInputs& inputs,
                                             const sherd::ops::AttentionOutput& output,
                                             const at::Tensor& grad) {
  sherd::ops::AttentionOutput of_cpu = output;
  of_cpu.kernel = AttentionKernel::Plain;
  return on_cpu().attention_backward(inputs, of_cpu, grad);
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
  none.attention.erase(AttentionKernel::Flash);
  none.source = "measured";
  std::vector<std::string> said;
  sherd::ops::Backend backend = on_cpu();
  backend.attention = &by_flash;
  backend.attention_backward = &back_by_flash;
  const plan::GpuRates rates =
      calibrate_kernels(backend, c10::Device(c10::kCPU), none, tiny,
                        [&](const std::string& line) { said.push_back(line); });
  EXPECT_EQ(said.size(), 6);
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
  const std::vector<plan::AttentionFigure>& flash = rates.attention.at(AttentionKernel::Flash);
  ASSERT_EQ(flash.size(), 3);
  EXPECT_EQ(flash.front().tokens, 16);
  EXPECT_GT(flash.back().backward, 0);
  // What another kernel computed is no figure of cuDNN.
  const std::vector<plan::AttentionFigure>& cudnn = rates.attention.at(AttentionKernel::Cudnn);
  EXPECT_EQ(cudnn.front().tokens, none.attention.at(AttentionKernel::Cudnn).front().tokens);
  EXPECT_EQ(cudnn.back().forward, none.attention.at(AttentionKernel::Cudnn).back().forward);
  const std::string why = "attention by cudnn as shipped: flash computed it here";
  EXPECT_EQ(said.at(4), why);
  EXPECT_EQ(rates.source, "measured; " + why);
}

TEST(Calibrate, OfGpusIsForOneRank) {
  check_ranks_of_kernels(sherd::World::fake({.device = c10::DeviceType::CUDA}));
  sherd::test::expect_error(
      [] {
        check_ranks_of_kernels(
            sherd::World::fake({.size = 2, .local_size = 2, .device = c10::DeviceType::CUDA}));
      },
      sherd::ExitCode::Usage, {"measures one GPU", "2 ranks", "-n 1"});
}

}  // namespace
}  // namespace llm::bench
