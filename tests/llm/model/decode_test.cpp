// Decoding with a cache gives what reading the whole text gives.

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "llm/model/causal_lm.h"
#include "tests/llm/model/small_llama.h"

namespace llm::model {
namespace {

// The scores after `length` tokens of a row, without a cache.
at::Tensor scores_after(CausalLmImpl& model, const at::Tensor& row, int64_t length) {
  const at::Tensor ids = row.narrow(0, 0, length).unsqueeze(0);
  return model.logits(ids, at::ones(ids.sizes(), at::kLong))[0][length - 1];
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_LE((actual - expected).abs().max().item<double>(),
            1e-5 * expected.abs().max().item<double>());
}

TEST(Decode, PromptsOfDifferentLengthThenTokenByToken) {
  Llama model = make_llama(small_llama_config());
  const std::vector<int64_t> lengths = {4, 9, 1};
  const auto texts = make_batch({20, 20, 20}, kVocabulary).ids;  // what each row will hold
  const auto mask = make_batch(lengths, kVocabulary).mask;
  KvCache cache(20);
  at::Tensor scores = model->decode(texts.slice(1, 0, 9) * mask, mask, cache);
  EXPECT_FALSE(scores.requires_grad());
  for (int64_t step = 0; step < 8; ++step) {
    at::Tensor next = at::zeros_like(texts.slice(1, 0, 1));
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t read = lengths[static_cast<size_t>(row)] + step;
      expect_close(scores[row], scores_after(*model, texts[row], read));
      next[row][0] = texts[row][read];
    }
    scores = model->decode(next, at::ones({3, 1}, at::kLong), cache);
  }
}

TEST(Decode, AFinishedRowStandsStillAndDisturbsNobody) {
  Llama model = make_llama(small_llama_config());
  const auto texts = make_batch({9, 9}, kVocabulary).ids;
  KvCache cache(8);
  (void)model->decode(texts.slice(1, 0, 3), at::ones({2, 3}, at::kLong), cache);
  at::Tensor scores;
  for (int64_t read = 3; read < 8; ++read) {  // row 1 has ended
    scores = model->decode(texts.slice(1, read, read + 1),
                           at::tensor({1, 0}, at::kLong).unsqueeze(1), cache);
    expect_close(scores[0], scores_after(*model, texts[0], read + 1));
  }
}

TEST(Decode, RefusesMoreTokensThanTheCacheHolds) {
  Llama model = make_llama(small_llama_config());
  const auto texts = make_batch({9}, kVocabulary).ids;
  KvCache cache(4);
  EXPECT_THROW((void)model->decode(texts, at::ones({1, 9}, at::kLong), cache), c10::Error);
  (void)model->decode(texts.slice(1, 0, 4), at::ones({1, 4}, at::kLong), cache);
  EXPECT_THROW((void)model->decode(texts.slice(1, 4, 5), at::ones({1, 1}, at::kLong), cache),
               c10::Error);
}

}  // namespace
}  // namespace llm::model
