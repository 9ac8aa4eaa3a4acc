// Attention with a scale, a window and a soft cap of scores, against the whole matrix of scores in
// fp64.

#include "ops/attention_scores.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/plain_operators.h"
#include "tests/ops/parity.h"
#include "tests/ops/with_isa.h"

namespace sherd::ops {
namespace {

// Lengths that differ, neighbours of one length, one token, blocks of queries and a little more.
const std::vector<int64_t> kTexts = {5, 130, 1, 64, 64, 129, 2, 258};
// Computed without matrix products, and with them.
constexpr int64_t kSizes[] = {8, 40};

struct Call {
  AttentionScores scores;
  at::Tensor slopes = {};
};

// One token, two, no multiple of a block, a block and one more, as long as a text, longer than any.
std::vector<Call> calls() {
  std::vector<Call> all;
  for (const int64_t window : {1, 2, 17, 64, 65, 128, 129, 130, 200, 258, 1000}) {
    all.push_back({{.window = window}});
  }
  all.push_back({{.scale = 0.07}});
  all.push_back({{.soft_cap = 1.5}});
  all.push_back({{.scale = 0.9, .window = 33, .soft_cap = 2}});
  all.push_back({{.scale = 0.2, .window = 70}, at::tensor({0.7, 0.3, 0.02, 0.001}, at::kFloat)});
  return all;
}

// −∞ where a token does not see another: [T, T]
at::Tensor hidden(const Documents& documents, int64_t window) {
  at::Tensor mask = at::full({documents.tokens(), documents.tokens()},
                             -std::numeric_limits<double>::infinity(), at::kDouble);
  for (int64_t d = 0; d < documents.count(); ++d) {
    for (int64_t t = documents.begin(d); t < documents.end(d); ++t) {
      const int64_t first = std::max(documents.begin(d), window == 0 ? 0 : t - window + 1);
      mask[t].slice(0, first, t + 1).zero_();
    }
  }
  return mask;
}

at::Tensor direct(const Tensors& in, const Documents& documents, const Call& call) {
  const auto& [query, key, value] = std::tie(in[0], in[1], in[2]);
  const int64_t share = query.size(1) / key.size(1);
  const auto heads_first = [&](const at::Tensor& heads) {
    return heads.repeat_interleave(share, 1).transpose(0, 1);
  };
  const double scale = call.scores.scale == 0 ? 1 / std::sqrt(query.size(2)) : call.scores.scale;
  at::Tensor scores =
      at::matmul(query.transpose(0, 1), heads_first(key).transpose(1, 2)) * scale;  // [N, T, T]
  if (const double cap = call.scores.soft_cap; cap != 0) {
    scores = (scores / cap).tanh() * cap;
  }
  if (call.slopes.defined()) {
    const at::Tensor places = at::arange(documents.tokens(), at::kDouble);
    scores = scores - call.slopes.to(at::kDouble).view({-1, 1, 1}) * (places.unsqueeze(1) - places);
  }
  const at::Tensor weights = at::softmax(scores + hidden(documents, call.scores.window), -1);
  return at::matmul(weights, heads_first(value)).transpose(0, 1).flatten(1);
}

at::Tensor computed(const Tensors& in, const Documents& documents, const Call& call) {
  return attention(in[0], in[1], in[2], documents,
                   call.slopes.defined() ? std::optional(call.slopes) : std::nullopt,
                   AttentionKernel::Auto, call.scores);
}

std::vector<std::vector<int64_t>> shapes_of(int64_t tokens, int64_t size) {
  return {{tokens, 4, size}, {tokens, 2, size}, {tokens, 2, size}};
}

void expect_direct(const Tensors& leaves, const std::vector<int64_t>& lengths, const Call& call) {
  const Documents documents = Documents::of_lengths(lengths);
  SCOPED_TRACE("window " + std::to_string(call.scores.window) + ", cap " +
               std::to_string(call.scores.soft_cap));
  expect_parity([&](const Tensors& in) { return computed(in, documents, call); },
                [&](const Tensors& in) { return direct(in, documents, call); }, leaves);
}

class AttentionScoresTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionScoresTest, dtypes(), dtype_name);

TEST_P(AttentionScoresTest, AgreeWithTheWholeMatrix) {
  const int64_t tokens = Documents::of_lengths(kTexts).tokens();
  for (const int64_t size : kSizes) {
    for (const Call& call : calls()) {
      expect_direct(random_leaves(shapes_of(tokens, size), GetParam()), kTexts, call);
    }
  }
}

TEST(AttentionScores, OfThePlainBackEndAgreeWithTheWholeMatrix) {
  const PlainOperators plain;
  const int64_t tokens = Documents::of_lengths(kTexts).tokens();
  for (const Call& call : calls()) {
    expect_direct(random_leaves(shapes_of(tokens, 40), at::kFloat), kTexts, call);
  }
}

TEST_P(AttentionScoresTest, AgreeOnEveryPathOfTheProcessor) {
  const int64_t tokens = Documents::of_lengths(kTexts).tokens();
  for (int isa = 0; isa <= static_cast<int>(cpu::machine_isa()); ++isa) {
    const WithIsa path(static_cast<cpu::Isa>(isa));
    for (const int64_t size : kSizes) {
      SCOPED_TRACE(cpu::name_of(cpu::isa()));
      expect_direct(random_leaves(shapes_of(tokens, size), GetParam()), kTexts,
                    {{.scale = 0.9, .window = 33, .soft_cap = 2}});
    }
  }
}

// Products far beyond the cap, which holds them at its ends, where its slope is 0; and Gemma 2's
// cap.
TEST(AttentionScores, AreCappedWhereProductsAreLarge) {
  for (const int64_t size : kSizes) {
    for (const auto& [cap, factor] : {std::pair(4.0, 120), std::pair(50.0, 12)}) {
      Tensors leaves = random_leaves(shapes_of(135, size), at::kFloat);
      leaves[0] = (leaves[0].detach() * factor).requires_grad_();
      expect_direct(leaves, {135}, {{.window = 50, .soft_cap = cap}});
      const at::Tensor mixed =
          computed(leaves, Documents({0, 135}), {{.scale = 1e20, .soft_cap = cap}});
      EXPECT_TRUE(mixed.isfinite().all().item<bool>());
      leaves[0].grad().zero_();
      mixed.sum().backward();
      EXPECT_TRUE(leaves[0].grad().isfinite().all().item<bool>());
    }
  }
}

TEST_P(AttentionScoresTest, OfAWindowAsLongAsTheTextHaveTheBitsOfNone) {
  for (const int64_t size : kSizes) {
    const Tensors in = random_leaves(shapes_of(140, size), GetParam());
    const Documents documents({0, 9, 140});
    const at::Tensor none = computed(in, documents, {});
    EXPECT_TRUE(computed(in, documents, {{.window = 131}}).equal(none));
    EXPECT_FALSE(computed(in, documents, {{.window = 130}}).equal(none));
    EXPECT_TRUE(
        computed(in, documents, {{.window = 130}}).slice(0, 0, 139).equal(none.slice(0, 0, 139)));
  }
}

TEST_P(AttentionScoresTest, OfDocumentsSideBySideHaveTheBitsOfEachAlone) {
  const Documents documents = Documents::of_lengths(kTexts);
  const Call call{{.scale = 0.3, .window = 60, .soft_cap = 3}};
  for (const int64_t size : kSizes) {
    const Tensors in = random_leaves(shapes_of(documents.tokens(), size), GetParam());
    const at::Tensor together = computed(in, documents, call);
    const at::Tensor gradient = strided_gradient(together);
    together.backward(gradient);
    for (int64_t d = 0; d < documents.count(); ++d) {
      const auto part = [&](const at::Tensor& all) {
        return all.slice(0, documents.begin(d), documents.end(d));
      };
      Tensors own;
      for (const at::Tensor& leaf : in) {
        own.push_back(part(leaf.detach()).clone().requires_grad_());
      }
      const at::Tensor alone = computed(own, Documents({0, documents.length(d)}), call);
      alone.backward(part(gradient));
      EXPECT_TRUE(alone.equal(part(together))) << d;
      for (size_t i = 0; i < in.size(); ++i) {
        EXPECT_TRUE(own[i].grad().equal(part(in[i].grad()))) << d << " gradient " << i;
      }
    }
  }
}

// Row b's cache: NaN where its window does not reach, which a CPU does not read.
TEST_P(AttentionScoresTest, OfDecodingAreThoseOfTheWholeText) {
  constexpr int64_t kTokens = 40, kSize = 8, kRows = 3;
  const at::Tensor positions = at::tensor({39, 0, 21}, at::kLong);
  for (const Call& call : {Call{{.window = 7}}, Call{{.scale = 0.8, .window = 30, .soft_cap = 2}},
                           Call{{.window = 1}}, Call{{.soft_cap = 1.5}},
                           Call{{.window = 9}, at::tensor({0.7, 0.3, 0.02, 0.001}, at::kFloat)}}) {
    SCOPED_TRACE(call.scores.window);
    const Documents documents = Documents::of_equal_length(kRows, kTokens);
    const Tensors in = random_leaves(shapes_of(kRows * kTokens, kSize), GetParam());
    const at::Tensor all = computed(in, documents, call).detach();
    const auto cached = [&](const at::Tensor& heads) {
      at::Tensor rows = heads.detach().view({kRows, kTokens, 2, kSize}).transpose(1, 2).clone();
      for (int64_t b = 0; b < kRows && GetParam() != at::kDouble; ++b) {
        const int64_t at = positions[b].item<int64_t>();
        rows[b].slice(1, 0, call.scores.first_seen(at)).fill_(NAN);
        rows[b].slice(1, at + 1).fill_(NAN);
      }
      return rows;
    };
    const at::Tensor tokens = positions + at::arange(kRows, at::kLong) * kTokens;
    const at::Tensor found = decode_attention(
        in[0].detach().index_select(0, tokens), cached(in[1]), cached(in[2]), positions,
        call.slopes.defined() ? std::optional(call.slopes) : std::nullopt, call.scores);
    expect_close(found, all.index_select(0, tokens), tolerance_of(GetParam()), "row");
  }
}

TEST(AttentionScores, BelowZeroAndCapsWithAlibiAreRefused) {
  const at::Tensor heads = at::full({5, 2, 4}, 1.0);
  const Documents documents({0, 5});
  const auto refuses = [&](const Call& call, const char* message) {
    const Tensors in = {heads, heads, heads};
    EXPECT_THAT([&] { (void)computed(in, documents, call); },
                testing::ThrowsMessage<c10::Error>(testing::HasSubstr(message)));
  };
  refuses({{.window = -1}}, "a window of -1 tokens");
  refuses({{.scale = -0.5}}, "a scale of -0.5");
  refuses({{.soft_cap = -1}}, "a soft cap of -1; expected none below 0");
  refuses({{.soft_cap = 2}, at::full({2}, 0.1, at::kFloat)},
          "a soft cap of scores and ALiBi's slopes, which are not implemented together");
}

TEST(AttentionScores, CountThePairsOfAWindow) {
  for (const int64_t window : {0, 1, 3, 7, 9}) {
    int64_t pairs = 0;
    for (int64_t t = 0; t < 7; ++t) {
      pairs += t + 1 - AttentionScores{.window = window}.first_seen(t);
    }
    EXPECT_EQ(seen_pairs(7, window), pairs) << window;
  }
}

}  // namespace
}  // namespace sherd::ops
