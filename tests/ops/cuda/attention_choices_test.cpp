// Which kernel the back end for GPUs has compute attention, what it says of it, and what it does
// where one fails. Choices are kept for the process: each test has heads of its own.

#include "ops/cuda/attention_choices.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/with_backend.h"
#include "tests/ops/cuda/emulated_gpu.h"
#include "tests/ops/cuda/played.h"
#include "tests/ops/parity.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)
using testing::HasSubstr;
using testing::IsEmpty;

class ChoosesAttention : public testing::Test {
 protected:
  void TearDown() override {
    emulated_gpu() = {};
    at::globalContext().setDeterministicAlgorithms(false, false);
  }
};

at::Tensor heads_of(int64_t tokens, int64_t heads, int64_t size,
                    c10::ScalarType dtype = at::kBFloat16) {
  return (at::arange(tokens * heads * size, at::kDouble) * 0.7)
      .sin_()
      .view({tokens, heads, size})
      .to(dtype);
}

AttentionInputs equal_lengths(int64_t heads, int64_t size = 16, int64_t length = 5) {
  const at::Tensor all = heads_of(2 * length, heads, size);
  return {all, all, all, Documents::of_equal_length(2, length), {}};
}

std::string last_text() {
  return text_of(tested_backend().attention_choices().back());
}

AttentionKernel kernel_of(const AttentionInputs& inputs) {
  return tested_backend().attention(inputs).kernel;
}

// What LibTorch warns of meanwhile.
std::vector<std::string> warnings_of(const std::function<void()>& work) {
  struct Kept : c10::WarningHandler {
    void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
    std::vector<std::string> texts;
  };
  Kept kept;
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&kept);
    work();
  }
  return kept.texts;
}

TEST_F(ChoosesAttention, CudnnForDocumentsOfOneLength) {
  AttentionInputs inputs = equal_lengths(3);
  inputs.key = inputs.value = heads_of(10, 1, 16);
  EXPECT_EQ(kernel_of(inputs), AttentionKernel::Cudnn);
  EXPECT_EQ(last_text(), "cuDNN (3 heads, 1 key heads of 16, bfloat16, documents of one length)");
}

TEST_F(ChoosesAttention, FlashForDocumentsOfSeveralLengths) {
  AttentionInputs inputs = equal_lengths(5);
  inputs.documents = Documents::of_lengths(std::vector<int64_t>{4, 6});
  inputs.kernel = AttentionKernel::Cudnn;
  EXPECT_EQ(kernel_of(inputs), AttentionKernel::Flash);
  EXPECT_EQ(last_text(),
            "flash attention (5 heads of 16, bfloat16, documents of different lengths); not cuDNN: "
            "the documents of a batch differ in length");
}

TEST_F(ChoosesAttention, WhatTheCallerNames) {
  AttentionInputs inputs = equal_lengths(6);
  for (const AttentionKernel kernel :
       {AttentionKernel::Cudnn, AttentionKernel::Flash, AttentionKernel::Plain}) {
    inputs.kernel = kernel;
    EXPECT_EQ(kernel_of(inputs), kernel);
    EXPECT_THAT(tested_backend().attention_choices().back().why, IsEmpty());
  }
}

struct Refused {
  AttentionInputs inputs;
  int compute_capability;
  AttentionKernel kernel;
  const char* why;
};

TEST_F(ChoosesAttention, TheNextWhereOneDoesNotServeAndSaysWhy) {
  const auto with = [](AttentionInputs inputs,
                       const std::function<void(AttentionInputs&)>& change) {
    change(inputs);
    return inputs;
  };
  const AttentionInputs common = equal_lengths(7);
  const std::vector<Refused> all = {
      {with(common, [](auto& in) { in.slopes = at::ones({7}, at::kFloat); }), 90,
       AttentionKernel::Flash, "not cuDNN: it has no ALiBi"},
      {with(common,
            [](auto& in) { in.query = in.key = in.value = heads_of(10, 7, 16, at::kFloat); }),
       90, AttentionKernel::Plain,
       "not cuDNN: it computes bfloat16 and float16; not flash attention: it computes bfloat16 and "
       "float16"},
      {equal_lengths(7, 136), 90, AttentionKernel::Flash,
       "not cuDNN: it serves head sizes that are multiples of 8, up to 128"},
      {equal_lengths(7, 264), 90, AttentionKernel::Plain,
       "not flash attention: it serves head sizes that are multiples of 8, up to 256"},
      {equal_lengths(7, 12), 90, AttentionKernel::Plain,
       "not flash attention: it serves head sizes that are multiples of 8, up to 256"},
      {with(common, [](auto& in) { in.key = heads_of(10, 7, 17).slice(2, 0, 16); }), 90,
       AttentionKernel::Plain, "not cuDNN: heads do not begin at multiples of 16 bytes"},
      {equal_lengths(8), 86, AttentionKernel::Flash,
       "not cuDNN: auto takes it only on compute capability 9 and 10"},
      {equal_lengths(16), 120, AttentionKernel::Flash,
       "not cuDNN: auto takes it only on compute capability 9 and 10"},
      {equal_lengths(9), 75, AttentionKernel::Plain,
       "not cuDNN: it needs compute capability 8.0; not flash attention: it needs compute "
       "capability 8.0"}};
  for (const Refused& refused : all) {
    emulated_gpu().compute_capability = refused.compute_capability;
    EXPECT_EQ(kernel_of(refused.inputs), refused.kernel) << refused.why;
    EXPECT_THAT(tested_backend().attention_choices().back().why, HasSubstr(refused.why));
  }
}

TEST_F(ChoosesAttention, CudnnOnAmpereWhereTheCallerNamesIt) {
  emulated_gpu().compute_capability = 80;
  AttentionInputs inputs = equal_lengths(10);
  inputs.kernel = AttentionKernel::Cudnn;
  EXPECT_EQ(kernel_of(inputs), AttentionKernel::Cudnn);
}

TEST_F(ChoosesAttention, NothingForSingleTokens) {
  const std::size_t before = tested_backend().attention_choices().size();
  AttentionInputs inputs = equal_lengths(11);
  inputs.documents = Documents::of_equal_length(10, 1);
  EXPECT_EQ(kernel_of(inputs), AttentionKernel::Plain);
  EXPECT_EQ(tested_backend().attention_choices().size(), before);
}

TEST_F(ChoosesAttention, NotCudnnWhereResultsAreToRepeat) {
  AttentionInputs inputs = equal_lengths(12);
  EXPECT_EQ(kernel_of(inputs), AttentionKernel::Cudnn);
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_EQ(kernel_of(inputs), AttentionKernel::Flash);
  EXPECT_THAT(last_text(), HasSubstr("LibTorch does not call it deterministic"));
}

// A trial that fails, and one whose numbers are wrong.
TEST_F(ChoosesAttention, NotCudnnWhereItsTrialFails) {
  emulated_gpu().cudnn_backward_problem = "no plan";
  EXPECT_EQ(kernel_of(equal_lengths(13)), AttentionKernel::Flash);
  EXPECT_THAT(last_text(), testing::EndsWith("; not cuDNN: a trial failed: no plan"));
  int64_t heads = 30;
  const auto differs = [&](const EmulatedGpu& gpu) {
    emulated_gpu() = gpu;
    EXPECT_EQ(kernel_of(equal_lengths(++heads, 8)), AttentionKernel::Flash);
    EXPECT_THAT(last_text(), HasSubstr("in a trial its results differed from those of matrix"));
  };
  for (std::size_t result = 0; result < 4; ++result) {
    for (const double factor : {1.1, std::numeric_limits<double>::quiet_NaN()}) {
      EmulatedGpu gpu;
      gpu.cudnn_factors[result] = factor;
      differs(gpu);
    }
  }
  differs({.cudnn_gradient_tokens = 128});  // all that a head's size would have computed
  differs({.cudnn_gradient_tokens = 190});
  emulated_gpu() = {};
  EXPECT_EQ(kernel_of(equal_lengths(13)), AttentionKernel::Flash);
}

TEST_F(ChoosesAttention, FlashForAWindowAndMatrixProductsForASoftCap) {
  AttentionInputs inputs = equal_lengths(21);
  inputs.scores.window = 3;
  EXPECT_EQ(kernel_of(inputs), AttentionKernel::Flash);
  EXPECT_EQ(last_text(),
            "flash attention (21 heads of 16, bfloat16, a window of 3, documents of one length); "
            "not cuDNN: LibTorch gives it no window");
  inputs.scores = {.soft_cap = 2};
  EXPECT_EQ(kernel_of(inputs), AttentionKernel::Plain);
  EXPECT_EQ(last_text(),
            "matrix products (21 heads of 16, bfloat16, a soft cap of scores, documents of one "
            "length); not cuDNN: LibTorch gives it no soft cap of scores; not flash attention: "
            "LibTorch's has no soft cap of scores");
}

// A window that is as long as the documents is none.
TEST_F(ChoosesAttention, CudnnForAWindowThatHidesNothing) {
  const WithBackend played(tested_backend());
  const at::Tensor all = heads_of(10, 22, 16);
  const auto kernel_in = [&](int64_t window) {
    static_cast<void>(attention(all, all, all, Documents::of_equal_length(2, 5), std::nullopt,
                                AttentionKernel::Auto, {.window = window}));
    return tested_backend().attention_choices().back().kernel;
  };
  EXPECT_EQ(kernel_in(5), AttentionKernel::Cudnn);
  EXPECT_EQ(kernel_in(4), AttentionKernel::Flash);
}

// A LibTorch that was built without them may compute all that is behind.
TEST_F(ChoosesAttention, NotFlashWhereItsTrialInAWindowFails) {
  AttentionInputs inputs = equal_lengths(23);
  inputs.scores.window = 3;
  emulated_gpu().is_capturing = true;
  EXPECT_EQ(kernel_of(inputs), AttentionKernel::Plain);
  emulated_gpu().is_capturing = false;
  emulated_gpu().flash_ignores_windows = true;
  EXPECT_EQ(kernel_of(inputs), AttentionKernel::Plain);
  EXPECT_THAT(last_text(),
              testing::EndsWith("not flash attention: in a trial its results differed from those "
                                "of matrix products"));
}

// LibTorch keeps an empty plan of a shape that it failed to plan, and would follow it.
TEST_F(ChoosesAttention, TheNextWhereForwardFailsAndNeverThatOneAgain) {
  EXPECT_EQ(kernel_of(equal_lengths(15)), AttentionKernel::Cudnn);
  emulated_gpu().cudnn_forward_problem = "no plan for this";
  const int calls = emulated_gpu().cudnn_calls;
  const std::vector<std::string> warnings = warnings_of([] {
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(kernel_of(equal_lengths(15, 16, 7)), AttentionKernel::Flash);
    }
  });
  EXPECT_EQ(emulated_gpu().cudnn_calls, calls + 1);
  EXPECT_THAT(warnings, testing::ElementsAre(
                            "attention is computed by flash attention (15 heads of 16, bfloat16, "
                            "documents of one length); not cuDNN: it failed: no plan for this"));
}

// Several layers have been forward when the first backward fails: each is computed anew, and the
// next forward does not try cuDNN again, also where the caller names it.
TEST_F(ChoosesAttention, TheNextWhereBackwardFailsOfWhatCudnnHadForward) {
  const WithBackend played(tested_backend());
  for (const auto& [heads, kernel] :
       {std::pair(17, AttentionKernel::Auto), std::pair(19, AttentionKernel::Cudnn)}) {
    const auto gradient = [heads = heads, kernel = kernel](bool fails) {
      const at::Tensor leaf = heads_of(24, heads, 16).requires_grad_();
      const Documents documents = Documents::of_equal_length(2, 12);
      at::Tensor mixed = leaf;
      for (int layer = 0; layer < 3; ++layer) {
        mixed = attention(mixed, mixed, mixed, documents, std::nullopt, kernel).view(leaf.sizes());
      }
      emulated_gpu().cudnn_backward_problem = fails ? "no plan" : "";
      mixed.sum().backward();
      return leaf.grad();
    };
    const at::Tensor expected = gradient(false);
    const int calls = emulated_gpu().cudnn_calls;
    at::Tensor found;
    EXPECT_EQ(warnings_of([&] { found = gradient(true); }).size(), 1U);
    EXPECT_EQ(emulated_gpu().cudnn_calls, calls + 4);  // forward, and the one that failed
    expect_close(found, expected, tolerance_of(at::kBFloat16), "gradient");
    AttentionInputs inputs = equal_lengths(heads);
    inputs.kernel = kernel;
    EXPECT_EQ(kernel_of(inputs), AttentionKernel::Flash);
    emulated_gpu().cudnn_backward_problem = "";
  }
}

TEST_F(ChoosesAttention, AndDoesNotTakeTheEndOfMemoryForAFailure) {
  EXPECT_EQ(kernel_of(equal_lengths(18)), AttentionKernel::Cudnn);
  emulated_gpu().cudnn_ends_memory = true;
  EXPECT_THROW((void)kernel_of(equal_lengths(18)), c10::OutOfMemoryError);
  emulated_gpu() = {};
  EXPECT_EQ(kernel_of(equal_lengths(18)), AttentionKernel::Cudnn);
}

// A plan is not made while a graph is captured, nor a trial.
TEST_F(ChoosesAttention, BeforeAGraphIsCaptured) {
  const int before = emulated_gpu().cudnn_calls;
  emulated_gpu().is_capturing = true;
  AttentionInputs plain = equal_lengths(19);
  plain.kernel = AttentionKernel::Plain;
  EXPECT_EQ(kernel_of(plain), AttentionKernel::Plain);
  EXPECT_EQ(kernel_of(equal_lengths(19)), AttentionKernel::Flash);
  EXPECT_EQ(emulated_gpu().cudnn_calls, before);
  emulated_gpu().is_capturing = false;
  EXPECT_EQ(kernel_of(equal_lengths(19)), AttentionKernel::Cudnn);
  const int calls = emulated_gpu().cudnn_calls;
  emulated_gpu().is_capturing = true;
  EXPECT_EQ(kernel_of(equal_lengths(19)), AttentionKernel::Cudnn);
  EXPECT_EQ(kernel_of(equal_lengths(19, 16, 6)), AttentionKernel::Flash);
  EXPECT_EQ(emulated_gpu().cudnn_calls, calls + 1);
}

TEST_F(ChoosesAttention, CudnnForAFewLengthsAlone) {
  const std::vector<std::string> warnings = warnings_of([] {
    for (int64_t length = 2; length < 2 + static_cast<int64_t>(kMostCudnnLengths); ++length) {
      EXPECT_EQ(kernel_of(equal_lengths(20, 8, length)), AttentionKernel::Cudnn);
    }
    EXPECT_EQ(kernel_of(equal_lengths(20, 8, 100)), AttentionKernel::Flash);
    EXPECT_EQ(kernel_of(equal_lengths(20, 8, 101)), AttentionKernel::Flash);
    EXPECT_EQ(kernel_of(equal_lengths(20, 8, 3)), AttentionKernel::Cudnn);
  });
  EXPECT_THAT(warnings, testing::ElementsAre(
                            "attention: cuDNN computes batches of the first 8 lengths; those of "
                            "further lengths go to flash attention, which needs no plan for each"));
}

}  // namespace
}  // namespace sherd::ops::cuda
