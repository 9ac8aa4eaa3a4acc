#include "ops/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

class EmbeddingTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, EmbeddingTest, dtypes(), dtype_name);

TEST_P(EmbeddingTest, AgreesWithRepeatedIds) {
  const at::Tensor ids = at::randint(11, {3, 17}, at::kLong);
  expect_parity([&](const Tensors& in) { return ops::embedding(ids, in[0]); },
                [&](const Tensors& in) { return at::embedding(in[0], ids); },
                random_leaves({{11, 5}}, GetParam()));
}

TEST_P(EmbeddingTest, AgreesWithoutIds) {
  const at::Tensor ids = at::randint(11, {0, 4}, at::kLong);
  expect_parity([&](const Tensors& in) { return ops::embedding(ids, in[0]); },
                [&](const Tensors& in) { return at::embedding(in[0], ids); },
                random_leaves({{11, 5}}, GetParam()));
}

TEST(Embedding, SumsFrequentIdsWithoutLosingSmallTermsInBf16) {
  at::Tensor weight = at::ones({2, 1}, at::kBFloat16).requires_grad_();
  const at::Tensor ids = at::full({400}, 1, at::kLong);
  ops::embedding(ids, weight).sum().backward();
  EXPECT_EQ(weight.grad()[0].item<float>(), 0.0F);
  EXPECT_EQ(weight.grad()[1].item<float>(), 400.0F);  // added one by one in bf16: 256
}

TEST(Embedding, RefusesAnIdOutsideTheTable) {
  const at::Tensor weight = at::ones({2, 1}, at::kFloat);
  EXPECT_THROW((void)ops::embedding(at::full({1}, 2, at::kLong), weight), std::exception);
}

}  // namespace
}  // namespace sherd::ops
