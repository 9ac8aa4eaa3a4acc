// Decoding with a cache gives what reading the whole text gives.

#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/llm/model/small_bloom.h"
#include "tests/llm/model/small_llama.h"

namespace llm::model {
namespace {

using sherd::ops::Documents;

// The scores after `length` tokens of a text, without a cache.
at::Tensor scores_after(CausalLmImpl& model, const at::Tensor& text, int64_t length) {
  return model.logits(text.narrow(0, 0, length), Documents({0, length}))[length - 1];
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_LE((actual - expected).abs().max().item<double>(),
            1e-5 * expected.abs().max().item<double>());
}

// What each row will hold: [rows, 20]
at::Tensor texts_of(int64_t rows) {
  return make_batch(std::vector<int64_t>(static_cast<size_t>(rows), 20), kVocabulary)
      .ids_T.view({rows, 20});
}

// The first tokens of each text, as prompts.
at::Tensor decode_prompts(CausalLmImpl& model, const at::Tensor& texts,
                          const std::vector<int64_t>& lengths, KvCache& cache) {
  std::vector<at::Tensor> prompts;
  for (size_t row = 0; row < lengths.size(); ++row) {
    prompts.push_back(texts[static_cast<int64_t>(row)].narrow(0, 0, lengths[row]));
  }
  return model.decode(at::cat(prompts), Documents::of_lengths(lengths), cache);
}

// Its second layer sees five tokens, of scores that are capped.
DecoderConfig small_windowed_config() {
  DecoderConfig config = small_llama_config();
  config.window = 5;
  config.layers_with_window = {1};
  config.score_cap = 0.5;
  config.score_scale = 0.4;
  return config;
}

class DecodeTest : public testing::TestWithParam<const char*> {
 protected:
  CausalLm model = GetParam() == std::string("bloom")   ? make_bloom(small_bloom_config())
                   : GetParam() == std::string("llama") ? make_llama(small_llama_config())
                                                        : make_llama(small_windowed_config());
};
INSTANTIATE_TEST_SUITE_P(Families, DecodeTest, testing::Values("llama", "bloom", "windowed"));

TEST_P(DecodeTest, PromptsOfDifferentLengthThenTokenByToken) {
  const std::vector<int64_t> lengths = {4, 9, 1};
  const at::Tensor texts = texts_of(3);
  KvCache cache(20);
  at::Tensor scores = decode_prompts(*model, texts, lengths, cache);
  EXPECT_FALSE(scores.requires_grad());
  for (int64_t step = 0; step < 8; ++step) {
    std::vector<int64_t> next;
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t read = lengths[static_cast<size_t>(row)] + step;
      expect_close(scores[row], scores_after(*model, texts[row], read));
      next.push_back(texts[row][read].item<int64_t>());
    }
    scores = model->decode(at::tensor(next, at::kLong), Documents::of_equal_length(3, 1), cache);
  }
}

// The last row takes the place of one that has ended; the others see no difference.
TEST_P(DecodeTest, AFinishedRowLeavesAndDisturbsNobody) {
  const std::vector<int64_t> lengths = {4, 9, 1, 6};
  const at::Tensor texts = texts_of(4);
  KvCache cache(20);
  (void)decode_prompts(*model, texts, lengths, cache);
  std::vector<int64_t> rows = {0, 1, 2, 3};  // whose texts the cache holds
  std::vector<int64_t> read = lengths;
  const std::vector<std::vector<int64_t>> kept = {{0, 3, 2}, {0, 1, 2}, {2, 1}, {1}};
  for (const std::vector<int64_t>& step : kept) {
    cache.keep(step);
    ASSERT_EQ(cache.rows(), std::ssize(step));
    std::vector<int64_t> next, going_on;
    for (const int64_t row : step) {
      going_on.push_back(rows[static_cast<size_t>(row)]);
      const int64_t text = going_on.back();
      next.push_back(texts[text][read[static_cast<size_t>(text)]++].item<int64_t>());
    }
    rows = going_on;
    const at::Tensor scores = model->decode(at::tensor(next, at::kLong),
                                            Documents::of_equal_length(cache.rows(), 1), cache);
    for (size_t i = 0; i < rows.size(); ++i) {
      expect_close(scores[static_cast<int64_t>(i)],
                   scores_after(*model, texts[rows[i]], read[static_cast<size_t>(rows[i])]));
    }
  }
}

// As a rank does that has nothing to write, while others have.
TEST_P(DecodeTest, NoRowsAreDecodedToo) {
  KvCache cache(4);
  const at::Tensor none = at::zeros({0}, at::kLong);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(model->decode(none, {}, cache).sizes(), at::IntArrayRef({0, kVocabulary}));
  }
}

TEST(Decode, RefusesMoreTokensThanTheCacheHolds) {
  CausalLm model = make_llama(small_llama_config());
  const at::Tensor text = texts_of(1)[0];
  KvCache cache(4);
  const auto decode = [&](int64_t begin, int64_t end) {
    (void)model->decode(text.slice(0, begin, end), Documents({0, end - begin}), cache);
  };
  EXPECT_THROW(decode(0, 9), c10::Error);
  decode(0, 4);
  EXPECT_THROW(decode(4, 5), c10::Error);
}

TEST(Decode, RefusesOtherThanOneTokenOfEachRow) {
  CausalLm model = make_llama(small_llama_config());
  KvCache cache(9);
  const at::Tensor texts = texts_of(2);
  (void)decode_prompts(*model, texts, {3, 4}, cache);
  EXPECT_THAT(
      [&] {
        (void)model->decode(texts[0].slice(0, 0, 3), Documents({0, 1, 3}), cache);
      },
      testing::ThrowsMessage<c10::Error>(
          testing::HasSubstr("got 3 tokens in 2 documents for a cache that holds 2 texts")));
  EXPECT_THAT(
      [&] {
        cache.keep(std::vector<int64_t>{1, 0});
      },
      testing::ThrowsMessage<c10::Error>(testing::HasSubstr("row 1 cannot become row 0 of 2")));
}

}  // namespace
}  // namespace llm::model
