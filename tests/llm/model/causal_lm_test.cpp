#include "llm/model/causal_lm.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include "tests/llm/model/small_llama.h"

namespace llm::model {
namespace {

TEST(CausalLm, LossIsTheCrossEntropyOfShiftedLogits) {
  Llama model = make_llama(small_llama_config());
  const auto [ids, labels, mask] = make_batch({17, 5, 11}, kVocabulary);
  const at::Tensor logits = model->logits(ids, mask);
  const at::Tensor expected =
      at::cross_entropy_loss(logits.slice(1, 0, -1).flatten(0, 1), labels.slice(1, 1).flatten(), {},
                             at::Reduction::Sum, kIgnoredLabel);
  const at::Tensor loss = model->loss_sum(ids, labels, mask);
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());

  loss.backward();
  std::vector<at::Tensor> gradients;
  for (auto& parameter : model->parameters()) {
    gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  expected.backward();
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_LE((gradients[i] - model->parameters()[i].grad()).norm().item<double>(),
              1e-5 * gradients[i].norm().item<double>());
  }
}

TEST(CausalLm, LossDoesNotDependOnItsChunks) {
  Llama model = make_llama(small_llama_config());
  const auto [ids, labels, mask] = make_batch({17, 5, 11, 40}, kVocabulary);
  const auto gradient_of = [&, ids = ids, labels = labels, mask = mask](int64_t chunk) {
    model->set_loss_chunk_tokens(chunk);
    model->zero_grad();
    const at::Tensor loss = model->loss_sum(ids, labels, mask);
    loss.backward();
    return std::pair(loss.item<double>(), model->parameters().front().grad().clone());
  };
  const auto [whole, expected] = gradient_of(512);
  const auto [parts, actual] = gradient_of(3);  // of chunks: 69 rows are more than 3 + 2 * 13
  EXPECT_NEAR(parts, whole, 1e-6 * whole);
  EXPECT_LE((actual - expected).norm().item<double>(), 1e-5 * expected.norm().item<double>());
}

TEST(CausalLm, PaddingChangesNothing) {
  Llama model = make_llama(small_llama_config(/*tied=*/true));
  const auto batch = make_batch({17, 5}, kVocabulary);
  double sum = 0;
  for (int64_t row = 0; row < 2; ++row) {
    const auto alone = [&](const at::Tensor& tensor) {
      return tensor.narrow(0, row, 1).slice(1, 0, row == 0 ? 17 : 5);
    };
    sum += model->loss_sum(alone(batch.ids), alone(batch.labels), alone(batch.mask)).item<double>();
  }
  EXPECT_NEAR(model->loss_sum(batch.ids, batch.labels, batch.mask).item<double>(), sum, 1e-4);
}

TEST(CausalLm, RefusesPaddingOnTheLeft) {
  Llama model = make_llama(small_llama_config());
  auto batch = make_batch({7, 7}, kVocabulary);
  batch.mask[1][0] = 0;
  try {
    (void)model->logits(batch.ids, batch.mask);
    FAIL() << "accepted";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("expected padding on the right"), std::string::npos);
  }
}

TEST(CausalLm, WithoutSupervisedTokensLossAndGradientsAreZero) {
  Llama model = make_llama(small_llama_config());
  const auto batch = make_batch({9, 4}, kVocabulary);
  const at::Tensor none = at::full_like(batch.labels, kIgnoredLabel);
  const at::Tensor loss = model->loss_sum(batch.ids, none, batch.mask);
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  for (const auto& parameter : model->named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    EXPECT_EQ(parameter.value().grad().abs().max().item<double>(), 0) << parameter.key();
  }
}

TEST(CausalLm, ARankWithoutSamplesTakesPart) {
  Llama model = make_llama(small_llama_config());
  const auto batch = make_batch({9, 4}, kVocabulary);
  const auto none = [](const at::Tensor& tensor) { return tensor.narrow(0, 0, 0); };
  const at::Tensor loss = model->loss_sum(none(batch.ids), none(batch.labels), none(batch.mask));
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  }
  EXPECT_EQ(model->logits(none(batch.ids), none(batch.mask)).sizes(),
            at::IntArrayRef({0, 9, kVocabulary}));
}

TEST(CausalLm, Bf16ComputesInBf16WithAnFp32Loss) {
  Llama exact = make_llama(small_llama_config());
  Llama rounded = make_llama(small_llama_config());
  rounded->to(at::kBFloat16);
  const auto batch = make_batch({17, 5, 11}, kVocabulary);
  EXPECT_EQ(rounded->logits(batch.ids, batch.mask).scalar_type(), at::kBFloat16);
  const at::Tensor loss = rounded->loss_sum(batch.ids, batch.labels, batch.mask);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  const double expected = exact->loss_sum(batch.ids, batch.labels, batch.mask).item<double>();
  EXPECT_NEAR(loss.item<double>(), expected, 0.02 * expected);
  loss.backward();
  EXPECT_EQ(rounded->parameters()[0].grad().scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace llm::model
