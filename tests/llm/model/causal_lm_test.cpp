#include "llm/model/causal_lm.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/llm/model/small_bloom.h"
#include "tests/llm/model/small_llama.h"

namespace llm::model {
namespace {

TEST(CausalLm, LossIsTheCrossEntropyOfShiftedLogits) {
  CausalLm model = make_llama(small_llama_config());
  const TokenBatch batch = make_batch({17, 5, 11}, kVocabulary);
  at::Tensor expected = at::zeros({});
  for (int64_t d = 0; d < batch.documents.count(); ++d) {
    const TokenBatch one = document_of(batch, d);
    expected = expected + at::cross_entropy_loss(
                              model->logits(one.ids_T, one.documents).slice(0, 0, -1),
                              one.labels_T.slice(0, 1), {}, at::Reduction::Sum, kIgnoredLabel);
  }
  const at::Tensor loss = model->loss_sum(batch.ids_T, batch.labels_T, batch.documents);
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
  CausalLm model = make_llama(small_llama_config());
  const TokenBatch batch = make_batch({17, 5, 11, 40}, kVocabulary);
  const auto gradient_of = [&](int64_t chunk) {
    model->set_loss_chunk_tokens(chunk);
    model->zero_grad();
    const at::Tensor loss = model->loss_sum(batch.ids_T, batch.labels_T, batch.documents);
    loss.backward();
    return std::pair(loss.item<double>(), model->parameters().front().grad().clone());
  };
  const auto [whole, expected] = gradient_of(512);
  const auto [parts, actual] = gradient_of(3);  // of chunks: 69 rows are more than 3 + 2 * 13
  EXPECT_NEAR(parts, whole, 1e-6 * whole);
  EXPECT_LE((actual - expected).norm().item<double>(), 1e-5 * expected.norm().item<double>());
}

// What several documents in one row cost and teach is what each does in a batch of its own.
void expect_documents_as_alone(CausalLm model) {
  const auto batch = make_batch({17, 5, 5, 1, 9, 40}, kVocabulary);
  double sum = 0;
  for (int64_t d = 0; d < batch.documents.count(); ++d) {
    const TokenBatch one = document_of(batch, d);
    const at::Tensor loss = model->loss_sum(one.ids_T, one.labels_T, one.documents);
    loss.backward();
    sum += loss.item<double>();
  }
  std::vector<at::Tensor> gradients;
  for (auto& parameter : model->parameters()) {
    gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  const at::Tensor loss = model->loss_sum(batch.ids_T, batch.labels_T, batch.documents);
  EXPECT_NEAR(loss.item<double>(), sum, 1e-6 * sum);
  loss.backward();
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_LE((model->parameters()[i].grad() - gradients[i]).norm().item<double>(),
              1e-5 * gradients[i].norm().item<double>())
        << model->named_parameters().keys()[i];
  }
}

TEST(CausalLm, DocumentsOfALlamaDoNotChangeEachOther) {
  expect_documents_as_alone(make_llama(small_llama_config(/*tied=*/true)));
}

TEST(CausalLm, DocumentsOfABloomDoNotChangeEachOther) {
  expect_documents_as_alone(make_bloom(small_bloom_config()));
}

// Nothing of its own document comes before it.
TEST(CausalLm, TheLabelOfADocumentsFirstTokenDoesNotCount) {
  CausalLm model = make_llama(small_llama_config());
  const auto batch = make_batch({7, 5}, kVocabulary);
  const at::Tensor labels = batch.labels_T.clone();
  labels[0] = 3;
  labels[7] = 4;
  EXPECT_EQ(model->loss_sum(batch.ids_T, labels, batch.documents).item<double>(),
            model->loss_sum(batch.ids_T, batch.labels_T, batch.documents).item<double>());
  EXPECT_EQ(labels[7].item<int64_t>(), 4) << "the caller's labels are his own";
}

TEST(CausalLm, RefusesDocumentsOfOtherTokens) {
  CausalLm model = make_llama(small_llama_config());
  const auto batch = make_batch({7, 7}, kVocabulary);
  EXPECT_THAT(
      [&] {
        (void)model->logits(batch.ids_T, sherd::ops::Documents({0, 7}));
      },
      testing::ThrowsMessage<c10::Error>(
          testing::HasSubstr("got 14 ids, but documents of 7 tokens")));
}

TEST(TokenBatch, RefusesPaddingOnTheLeft) {
  const at::Tensor ids = at::ones({2, 3}, at::kLong);
  const at::Tensor mask = at::tensor({1, 1, 1, 0, 1, 1}, at::kLong).view({2, 3});
  EXPECT_THAT(
      [&] { (void)without_padding(ids, ids, mask); },
      testing::ThrowsMessage<c10::Error>(testing::HasSubstr("expected padding on the right")));
}

TEST(CausalLm, WithoutSupervisedTokensLossAndGradientsAreZero) {
  CausalLm model = make_llama(small_llama_config());
  const auto batch = make_batch({9, 4}, kVocabulary);
  const at::Tensor none = at::full_like(batch.labels_T, kIgnoredLabel);
  const at::Tensor loss = model->loss_sum(batch.ids_T, none, batch.documents);
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  for (const auto& parameter : model->named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    EXPECT_EQ(parameter.value().grad().abs().max().item<double>(), 0) << parameter.key();
  }
}

TEST(CausalLm, ARankWithoutSamplesTakesPart) {
  const at::Tensor none = at::zeros({0}, at::kLong);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (CausalLm model : {make_llama(small_llama_config()), make_bloom(small_bloom_config())}) {
      SCOPED_TRACE(model->family());
      model->to(dtype);
      const at::Tensor loss = model->loss_sum(none, none, {});
      EXPECT_EQ(loss.item<double>(), 0);
      loss.backward();
      for (const auto& parameter : model->named_parameters()) {
        ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
        EXPECT_EQ(parameter.value().grad().abs().max().item<double>(), 0) << parameter.key();
      }
      EXPECT_EQ(model->logits(none, {}).sizes(), at::IntArrayRef({0, kVocabulary}));
    }
  }
}

TEST(CausalLm, Bf16ComputesInBf16WithAnFp32Loss) {
  CausalLm exact = make_llama(small_llama_config());
  CausalLm rounded = make_llama(small_llama_config());
  rounded->to(at::kBFloat16);
  const auto batch = make_batch({17, 5, 11}, kVocabulary);
  EXPECT_EQ(rounded->logits(batch.ids_T, batch.documents).scalar_type(), at::kBFloat16);
  const at::Tensor loss = rounded->loss_sum(batch.ids_T, batch.labels_T, batch.documents);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  const double expected =
      exact->loss_sum(batch.ids_T, batch.labels_T, batch.documents).item<double>();
  EXPECT_NEAR(loss.item<double>(), expected, 0.02 * expected);
  loss.backward();
  EXPECT_EQ(rounded->parameters()[0].grad().scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace llm::model
