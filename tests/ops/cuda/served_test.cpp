// Which shapes the kernels of ops/cuda serve, by the launches that are counted, and which they
// leave to the plain back end.

#include <functional>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/cuda/launches.h"
#include "ops/cuda/plain_uses.h"
#include "ops/with_backend.h"
#include "sherd/error.h"
#include "tests/emulator/emulator.h"
#include "tests/ops/cuda/played.h"
#include "tests/ops/parity.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

// Of the work on this thread: each launch takes a seed.
int64_t launches_of(const std::function<void(const Backend&)>& work) {
  const auto before = static_cast<int64_t>(emulator::next_seed());
  work(tested_backend());
  return static_cast<int64_t>(emulator::next_seed()) - before - 1;
}

class Served : public testing::TestWithParam<c10::ScalarType> {
 protected:
  static at::Tensor of(at::IntArrayRef shape) { return at::ones(shape, GetParam()); }
  // The same values, 2 or 4 bytes behind a multiple of 16.
  static at::Tensor unaligned(const at::Tensor& tensor) {
    at::Tensor room = at::zeros({tensor.numel() + 1}, tensor.options());
    const at::Tensor moved = room.narrow(0, 1, tensor.numel()).view(tensor.sizes());
    return moved.copy_(tensor);
  }
  static int64_t count() { return GetParam() == at::kFloat ? 4 : 8; }

  // A kernel forward, one back, or two where it reads rows twice, and the sums of its parts.
  static int64_t of_norm(const at::Tensor& rows, const at::Tensor& weight) {
    return launches_of([&](const Backend& backend) {
      const NormParameters parameters{weight, {}, 1e-5};
      const NormOutput output = backend.norm({rows, {}}, parameters);
      static_cast<void>(
          backend.norm_backward({rows, {}}, rows, parameters, output.statistics, {true, false}));
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, Served,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf, at::kDouble),
                         dtype_name);

TEST_P(Served, NormsOfWholePacksUpToTheWidest) {
  const bool is_compiled = GetParam() != at::kDouble;
  const int64_t widest = 4096 * count(), in_registers = widest / 4;
  for (const int64_t width : {count(), in_registers, in_registers + count(), widest}) {
    const int64_t launches = width > in_registers ? 4 : 3;
    EXPECT_EQ(of_norm(of({1, width}), of({width})), is_compiled ? launches : 0) << width;
    EXPECT_EQ(of_norm(unaligned(of({1, width})), of({width})), 0) << width;
    EXPECT_EQ(of_norm(of({1, width}), unaligned(of({width}))), 0) << width;
  }
  EXPECT_EQ(of_norm(of({1, count() + 1}), of({count() + 1})), 0);
  EXPECT_EQ(of_norm(of({1, widest + count()}), of({widest + count()})), 0);
}

// What forward of either back end leaves, backward of the other reads.
TEST_P(Served, NormsGoOnWhereTheOtherBackEndWasForward) {
  const at::Tensor rows = at::randn({3, 16}, at::kDouble).to(GetParam());
  const at::Tensor weight = at::randn({16}, at::kDouble).to(GetParam());
  const at::Tensor grad = at::randn({3, 16}, at::kDouble).to(GetParam());
  const NormParameters parameters{weight, weight, 1e-5};
  const auto gradient = [&](const at::Tensor& forward, const at::Tensor& back) {
    const NormOutput output = tested_backend().norm({forward, {}}, parameters);
    return tested_backend()
        .norm_backward({back, {}}, rows, parameters, output.statistics, {true, true})
        .sum;
  };
  const at::Tensor expected = gradient(rows, grad);
  const double tolerance = tolerance_of(GetParam());
  expect_close(gradient(rows, unaligned(grad)), expected, tolerance, "back by the plain one");
  expect_close(gradient(unaligned(rows), grad), expected, tolerance, "forward by the plain one");
}

// The Error of the operators' and the library's kernels is the same.
TEST(Launches, ThatFailAreErrorsOfTheirKernel) {
  const at::Tensor rows = at::ones({2, 16});
  emulator::fail_next_launch("out of memory");
  try {
    static_cast<void>(tested_backend().norm({rows, {}}, {at::ones({16}), {}, 1e-5}));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("when the kernel norm was launched"));
  }
}

TEST_P(Served, ActivationsOfWholePacks) {
  const int64_t one = GetParam() == at::kDouble ? 0 : 1;
  const auto swiglu = [](const at::Tensor& gate, const at::Tensor& up) {
    return launches_of(
        [&](const Backend& backend) { static_cast<void>(backend.swiglu(gate, up)); });
  };
  EXPECT_EQ(swiglu(of({2, 12}), of({2, 12})), one);
  EXPECT_EQ(swiglu(of({1, 7}), of({1, 7})), 0);
  EXPECT_EQ(swiglu(of({2, 12}), unaligned(of({2, 12}))), 0);
  const at::Tensor both = of({3, 32});
  EXPECT_EQ(swiglu(both.slice(1, 0, 16), both.slice(1, 16)), one);
  EXPECT_EQ(swiglu(both.slice(1, 1, 14), both.slice(1, 15, 28)), 0);
  const auto gelu = [](const at::Tensor& input, const at::Tensor& bias) {
    return launches_of([&](const Backend& backend) {
      static_cast<void>(backend.bias_gelu(input, bias));
      static_cast<void>(backend.bias_gelu_backward(input, input, bias, true));
    });
  };
  EXPECT_EQ(gelu(of({2, 16}), of({16})), 3 * one);
  EXPECT_EQ(gelu(of({8, 6}), of({6})), 0);
  EXPECT_EQ(gelu(of({2, 16}), unaligned(of({16}))), 0);
}

TEST_P(Served, RotaryOfWholePacks) {
  const int64_t one = GetParam() == at::kDouble ? 0 : 1;
  const auto rotary = [](const at::Tensor& heads, const at::Tensor& table) {
    return launches_of(
        [&](const Backend& backend) { static_cast<void>(backend.rotary(heads, table, table, 1)); });
  };
  const auto table = [](int64_t half) { return at::ones({5, half}, at::kFloat); };
  EXPECT_EQ(rotary(of({2, 3, 5, 16}), table(8)), one);
  EXPECT_EQ(rotary(of({2, 5, 3, 16}).transpose(1, 2), table(8)), one);
  EXPECT_EQ(rotary(of({2, 3, 5, 12}), table(6)), 0);
  EXPECT_EQ(rotary(of({2, 3, 16, 5}).transpose(2, 3), table(8)), 0);
  EXPECT_EQ(rotary(of({2, 3, 5, 17}).slice(3, 0, 16), table(8)), 0);
  EXPECT_EQ(rotary(unaligned(of({2, 3, 5, 16})), table(8)), 0);
  EXPECT_EQ(rotary(of({2, 3, 5, 16}), unaligned(table(8))), 0);
}

TEST_P(Served, LogitsAndSumsOfWholePacks) {
  const int64_t one = GetParam() == at::kDouble ? 0 : 1;
  const auto losses = [](at::Tensor logits) {
    return launches_of([&](const Backend& backend) {
      const at::Tensor targets = at::zeros({logits.size(0)}, at::kLong);
      const CrossEntropy loss = backend.cross_entropy(logits, targets);
      backend.cross_entropy_backward(logits, targets, loss.log_sums_R, loss.loss_sum);
    });
  };
  EXPECT_EQ(losses(of({2, 24})), 2 * one);
  EXPECT_EQ(losses(of({2, 22})), 0);
  EXPECT_EQ(losses(unaligned(of({2, 24}))), 0);
  const auto sums = [](const at::Tensor& matrix) {
    return launches_of(
        [&](const Backend& backend) { static_cast<void>(backend.column_sums(matrix)); });
  };
  EXPECT_EQ(sums(of({2, 24})), one);
  EXPECT_EQ(sums(of({24, 2}).t()), one);
  EXPECT_EQ(sums(of({512, 8})), 2 * one);
  EXPECT_EQ(sums(of({2, 22})), 0);
  EXPECT_EQ(sums(unaligned(of({2, 24}))), 0);
}

// Of any width, in the gradient's dtype or in fp32.
TEST_P(Served, EmbeddingGradients) {
  const auto embedding = [](at::Tensor out, const at::Tensor& gradient) {
    return launches_of([&](const Backend& backend) {
      backend.add_embedding_gradient(out, at::zeros({2}, at::kLong), gradient);
    });
  };
  const int64_t two = GetParam() == at::kDouble ? 0 : 2;  // ids are sorted, rows added
  EXPECT_EQ(embedding(of({3, 7}), of({2, 7})), two);
  EXPECT_EQ(embedding(of({3, 16}), of({2, 16})), two);
  EXPECT_EQ(embedding(at::ones({3, 16}, at::kFloat), of({2, 16})), two);
  EXPECT_EQ(embedding(unaligned(of({3, 16})), of({2, 16})), two);
  EXPECT_EQ(embedding(of({7, 3}).t(), of({2, 7})), 0);
  EXPECT_EQ(embedding(of({3, 7}), at::ones({2, 7}, at::kDouble)), 0);
}

// What is left to the plain back end is noted once for each function, with the first reason.
TEST(PlainUses, AreNotedOnce) {
  const auto reason_for = [](const std::string& function) {
    std::vector<std::string> reasons;
    for (const PlainUse& use : tested_backend().plain_uses()) {
      if (use.function == function) {
        reasons.push_back(use.reason);
      }
    }
    return reasons.size() == 1 ? reasons.front() : std::to_string(reasons.size()) + " reasons";
  };
  for (const int64_t width : {13, 40'000, 14}) {
    const at::Tensor rows = at::ones({1, width}), weight = at::ones({width});
    static_cast<void>(tested_backend().norm({rows, {}}, {weight, {}, 1e-5}));
  }
  EXPECT_THAT(reason_for("norm"), testing::Not(testing::HasSubstr(" reasons")));
  const WithBackend played(tested_backend());
  EXPECT_THAT(kernels_text(c10::kCPU),
              testing::HasSubstr("cuda; LibTorch's operators compute norm ("));
  EXPECT_EQ(kernels_text("cuda", {{"norm", "wide"}, {"rotary", "narrow"}}),
            "cuda; LibTorch's operators compute norm (wide), rotary (narrow)");
}

TEST(PlainUses, AreNoneOnACpu) {
  EXPECT_TRUE(plain_uses(c10::kCPU).empty());
}

TEST(PlainUses, SayWhy) {
  EXPECT_EQ(reason_of(at::ones({2, 13}), 13), "rows of 13 values are not a multiple of 4");
  EXPECT_EQ(reason_of(at::ones({2, 12}, at::kHalf), 12),
            "rows of 12 values are not a multiple of 8");
  EXPECT_EQ(reason_of(at::ones({2, 16}, at::kDouble), 16),
            "there are kernels for Float, BFloat16 and Half, not for Double");
  EXPECT_EQ(reason_of(at::ones({2, 16}), 16),
            "tensors are not all dense, of one dtype, and at multiples of 16 bytes");
}

TEST_P(Served, FlashAttentionOf16Bits) {
  const bool is_16_bits = GetParam() == at::kBFloat16 || GetParam() == at::kHalf;
  const auto is_flash = [](const at::Tensor& heads, std::vector<int64_t> lengths,
                           const at::Tensor& slopes = {}) {
    return tested_backend()
               .attention({heads, heads, heads, Documents::of_lengths(lengths), slopes})
               .kernel == AttentionKernel::Flash;
  };
  EXPECT_EQ(is_flash(of({6, 2, 16}), {2, 4}), is_16_bits);
  EXPECT_EQ(is_flash(of({6, 3, 2, 16}).select(1, 1), {2, 4}), is_16_bits);
  const at::Tensor slopes = at::ones({2}, at::kFloat);
  EXPECT_EQ(is_flash(of({6, 2, 16}), {2, 4}, slopes), is_16_bits);
  EXPECT_EQ(is_flash(of({6, 2, 248}), {2, 4}, slopes), is_16_bits);
  EXPECT_FALSE(is_flash(of({6, 2, 256}), {2, 4}, slopes));
  EXPECT_FALSE(is_flash(of({6, 2, 16}), {2, 4}, at::ones({4}, at::kFloat).slice(0, 0, 4, 2)));
  EXPECT_FALSE(is_flash(of({6, 2, 12}), {2, 4}));
  EXPECT_FALSE(is_flash(of({6, 2, 264}), {2, 4}));
  EXPECT_FALSE(is_flash(of({6, 16, 2}).transpose(1, 2), {2, 4}));
  EXPECT_FALSE(is_flash(of({6, 2, 17}).slice(2, 0, 16), {2, 4}));
  EXPECT_FALSE(is_flash(unaligned(of({6, 2, 16})), {2, 4}));
  EXPECT_FALSE(is_flash(of({2, 2, 16}), {1, 1}));
  EXPECT_FALSE(is_flash(of({0, 2, 16}), {}));
}

// Two kernels for queries and keys, one for zeros behind values; the same and two back.
TEST(FlashAttention, WidensHeadsForAlibi) {
  const at::Tensor heads = at::ones({6, 2, 16}, at::kHalf);
  const AttentionInputs inputs{heads, heads, heads,
                               Documents::of_lengths(std::vector<int64_t>{2, 4}),
                               at::ones({2}, at::kFloat)};
  AttentionOutput output;
  EXPECT_EQ(launches_of([&](const Backend& backend) { output = backend.attention(inputs); }), 3);
  EXPECT_EQ(launches_of([&](const Backend& backend) {
              static_cast<void>(backend.attention_backward(inputs, output, heads.flatten(1)));
            }),
            5);
}

// Two layers, forward and back.
TEST(FlashAttention, ReadsBoundsThatAreCopiedOnceABatch) {
  const WithBackend played(tested_backend());
  given_bounds().clear();
  const Documents documents = Documents::of_lengths(std::vector<int64_t>{4, 1, 6});
  at::Tensor heads = at::ones({11, 2, 16}, at::kHalf).requires_grad_();
  for (int layer = 0; layer < 2; ++layer) {
    heads = attention(heads, heads, heads, documents).view(heads.sizes());
  }
  heads.sum().backward();
  ASSERT_EQ(given_bounds().size(), 4U);
  for (const at::Tensor& bounds : given_bounds()) {
    EXPECT_TRUE(bounds.is_same(given_bounds().front()));
  }
}

}  // namespace
}  // namespace sherd::ops::cuda
