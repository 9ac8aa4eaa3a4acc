#include "ops/attention.h"

#include <cmath>
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"
#include "tests/ops/rows_attention.h"

namespace sherd::ops {
namespace {

struct Shape {
  int64_t batch, heads, key_heads, tokens, head_size;
};
// Blocks hold 64 or 128 queries: less than one, exactly one and two, one query more (a last block
// of one), and sizes that do not divide.
const Shape kShapes[] = {{2, 4, 2, 5, 6},   {1, 6, 2, 64, 4}, {3, 2, 2, 65, 8},  {1, 2, 2, 128, 4},
                         {2, 4, 1, 130, 6}, {1, 1, 1, 1, 2},  {2, 4, 2, 129, 6}, {1, 2, 2, 257, 4},
                         {2, 4, 2, 260, 8}, {0, 4, 2, 7, 6},  {2, 4, 2, 65, 34}, {1, 2, 1, 130, 40},
                         {1, 2, 2, 300, 20}};

// Computed without matrix products, and with them.
constexpr int64_t kHeadSizes[] = {8, 40};

class AttentionTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionTest, dtypes(), dtype_name);

// `bias`, if there is one, is added to the scores.
at::Tensor plain_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor& bias = {}) {
  const int64_t share = query.size(1) / key.size(1), tokens = query.size(2);
  const at::Tensor scores = at::matmul(query, key.repeat_interleave(share, 1).transpose(-1, -2)) /
                            std::sqrt(static_cast<double>(query.size(3)));
  const at::Tensor future =
      at::full({tokens, tokens}, -std::numeric_limits<double>::infinity(), query.options()).triu(1);
  const at::Tensor biased = bias.defined() ? scores + bias : scores;
  return at::matmul(at::softmax(biased + future, -1), value.repeat_interleave(share, 1))
      .transpose(1, 2)
      .flatten(2);
}

TEST_P(AttentionTest, AgreesWithTheWholeScoreMatrix) {
  for (const auto& shape : kShapes) {
    SCOPED_TRACE(shape.tokens);
    // [B, T, N, H] in memory, as the model passes them.
    const Tensors leaves =
        random_leaves({{shape.batch, shape.tokens, shape.heads, shape.head_size},
                       {shape.batch, shape.tokens, shape.key_heads, shape.head_size},
                       {shape.batch, shape.tokens, shape.key_heads, shape.head_size}},
                      GetParam());
    const auto heads_first = [](const Tensors& in) {
      return Tensors{in[0].transpose(1, 2), in[1].transpose(1, 2), in[2].transpose(1, 2)};
    };
    expect_parity(
        [&](const Tensors& in) {
          const Tensors heads = heads_first(in);
          return rows_attention(heads[0], heads[1], heads[2]);
        },
        [&](const Tensors& in) {
          const Tensors heads = heads_first(in);
          return plain_attention(heads[0], heads[1], heads[2]);
        },
        leaves);
  }
}

// Lengths that differ, neighbours of one length, one token, blocks of queries and a little more.
const std::vector<int64_t> kLengths = {5, 130, 1, 64, 64, 64, 129, 2};

// Documents of one axis give, bit by bit, what each gives alone, and so do their gradients.
void expect_documents_as_each_alone(c10::ScalarType dtype, int64_t head_size,
                                    const std::optional<at::Tensor>& slopes) {
  SCOPED_TRACE(head_size);
  const Documents documents = Documents::of_lengths(kLengths);
  const int64_t tokens = documents.tokens();
  const Tensors in = random_leaves(
      {{tokens, 4, head_size}, {tokens, 2, head_size}, {tokens, 2, head_size}}, dtype);
  const at::Tensor together = attention(in[0], in[1], in[2], documents, slopes);
  const at::Tensor gradient = strided_gradient(together);
  together.backward(gradient);
  for (int64_t d = 0; d < documents.count(); ++d) {
    SCOPED_TRACE(d);
    const auto part = [&](const at::Tensor& all) {
      return all.slice(0, documents.begin(d), documents.end(d));
    };
    Tensors own;
    for (const at::Tensor& leaf : in) {
      own.push_back(part(leaf.detach()).clone().requires_grad_());
    }
    const at::Tensor alone =
        attention(own[0], own[1], own[2], Documents({0, documents.length(d)}), slopes);
    alone.backward(part(gradient));
    EXPECT_TRUE(alone.equal(part(together)));
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_TRUE(own[i].grad().equal(part(in[i].grad()))) << "gradient " << i;
    }
  }
}

// Slopes that no narrow dtype holds exactly.
at::Tensor slopes_of(int64_t heads) {
  return at::arange(1, heads + 1, at::kFloat).mul_(-0.37).exp_();
}

TEST_P(AttentionTest, AgreesWithAlibi) {
  for (const auto& shape : kShapes) {
    SCOPED_TRACE(shape.tokens);
    const at::Tensor slopes = slopes_of(shape.heads);
    // slope × key position, as transformers has it: the same but for a constant of each row
    const at::Tensor by_key = slopes.to(at::kDouble).view({-1, 1, 1}) *
                              at::arange(shape.tokens, at::kDouble);  // [N, 1, T]
    expect_parity([&](const Tensors& in) { return rows_attention(in[0], in[1], in[2], slopes); },
                  [&](const Tensors& in) { return plain_attention(in[0], in[1], in[2], by_key); },
                  random_leaves({{shape.batch, shape.heads, shape.tokens, shape.head_size},
                                 {shape.batch, shape.key_heads, shape.tokens, shape.head_size},
                                 {shape.batch, shape.key_heads, shape.tokens, shape.head_size}},
                                GetParam()));
  }
}

TEST_P(AttentionTest, DocumentsSideBySideDoNotSeeEachOther) {
  for (const int64_t head_size : kHeadSizes) {
    expect_documents_as_each_alone(GetParam(), head_size, std::nullopt);
  }
}
TEST_P(AttentionTest, DocumentsWithAlibiDoNotSeeEachOther) {
  for (const int64_t head_size : kHeadSizes) {
    expect_documents_as_each_alone(GetParam(), head_size, slopes_of(4));
  }
}

TEST(Attention, RefusesDocumentsThatDoNotCoverTheTokens) {
  const at::Tensor heads = at::full({5, 2, 4}, 1.0);
  EXPECT_THAT(
      [&] {
        (void)attention(heads, heads, heads, Documents({0, 3}));
      },
      testing::ThrowsMessage<c10::Error>(testing::HasSubstr("got 5 tokens, but documents of 3")));
}

// The values are +1 where bf16 would round the bias of the last query up and -1 where down, so that
// a bias that was rounded shows.
TEST(Attention, AddsAlibiInFp32) {
  constexpr int64_t kTokens = 512;
  const at::Tensor slopes = at::full({1}, 0.01, at::kFloat);
  const at::Tensor bias = (at::arange(kTokens, at::kDouble) - (kTokens - 1)) * 0.01;
  const at::Tensor value = (bias.to(at::kBFloat16).to(at::kDouble) - bias)
                               .sign()
                               .view({1, 1, -1, 1})
                               .expand({1, 1, -1, 2});
  const at::Tensor zero = at::full({1, 1, kTokens, 2}, 0.0, at::kBFloat16);
  const at::Tensor found = rows_attention(zero, zero, value.to(at::kBFloat16), slopes);
  const double expected = at::softmax(bias, 0).dot(value.select(3, 0).flatten()).item<double>();
  const double rounded = at::softmax(bias.to(at::kBFloat16).to(at::kDouble), 0)
                             .dot(value.select(3, 0).flatten())
                             .item<double>();
  EXPECT_GT(rounded - expected, 1e-3);
  EXPECT_NEAR(found[0][kTokens - 1][0].item<double>(), expected, 5e-4);
}

TEST_P(AttentionTest, ARowDoesNotDependOnTheOthersNorOnPaddingBehindIt) {
  for (const int64_t size : kHeadSizes) {
    SCOPED_TRACE(size);
    const Tensors in =
        random_leaves({{3, 4, 70, size}, {3, 2, 70, size}, {3, 2, 70, size}}, GetParam());
    const at::Tensor all = rows_attention(in[0], in[1], in[2]);
    const auto row = [](const at::Tensor& tensor) { return tensor.narrow(0, 1, 1); };
    EXPECT_TRUE(rows_attention(row(in[0]), row(in[1]), row(in[2])).equal(row(all)));
    at::Tensor key = in[1].detach().clone(), value = in[2].detach().clone();
    key.slice(2, 50).fill_(7);
    value.slice(2, 50).fill_(GetParam() == at::kHalf ? 6e4 : 1e6);
    EXPECT_TRUE(rows_attention(in[0], key, value).slice(1, 0, 50).equal(all.slice(1, 0, 50)));
  }
}

void expect_decoding_as_the_whole_text(c10::ScalarType dtype,
                                       const std::optional<at::Tensor>& slopes) {
  const Tensors in = random_leaves({{3, 4, 9, 8}, {3, 2, 9, 8}, {3, 2, 9, 8}}, dtype);
  const at::Tensor all = rows_attention(in[0], in[1], in[2], slopes);
  const at::Tensor positions = at::tensor({8, 0, 4}, at::kLong);
  const auto at_positions = [&](const at::Tensor& per_token, int64_t row) {
    return per_token[row][positions[row].item<int64_t>()];
  };
  at::Tensor query = at::full({3, 4, 8}, 0.0, in[0].options());
  for (int64_t row = 0; row < 3; ++row) {
    query[row].copy_(in[0].detach()[row].select(1, positions[row].item<int64_t>()));
  }
  const at::Tensor decoded =
      decode_attention(query, in[1].detach(), in[2].detach(), positions, slopes);
  for (int64_t row = 0; row < 3; ++row) {
    expect_close(decoded[row], at_positions(all, row).detach(), tolerance_of(dtype), "row");
  }
}

TEST_P(AttentionTest, DecodingGivesWhatTheWholeTextGives) {
  expect_decoding_as_the_whole_text(GetParam(), std::nullopt);
}
TEST_P(AttentionTest, DecodingWithAlibiGivesWhatTheWholeTextGives) {
  expect_decoding_as_the_whole_text(GetParam(), slopes_of(4));
}

void expect_nan_to_show_where_it_is_seen(c10::ScalarType dtype, int64_t size) {
  SCOPED_TRACE(size);
  Tensors in = random_leaves({{1, 2, 20, size}, {1, 2, 20, size}, {1, 2, 20, size}}, dtype);
  in[1] = in[1].detach().clone();
  in[1][0][1][7][3] = std::numeric_limits<double>::quiet_NaN();
  in[1].requires_grad_();
  const at::Tensor output = rows_attention(in[0], in[1], in[2]).view({20, 2, size});
  EXPECT_TRUE(output.slice(0, 7).select(1, 1).isnan().all().item<bool>());
  EXPECT_TRUE(output.slice(0, 0, 7).isfinite().all().item<bool>());
  EXPECT_TRUE(output.select(1, 0).isfinite().all().item<bool>());
  output.sum().backward();
  EXPECT_TRUE(in[0].grad()[0][1].slice(0, 7).isnan().all().item<bool>());
  EXPECT_TRUE(in[0].grad()[0][0].isfinite().all().item<bool>());
}
TEST_P(AttentionTest, ANumberThatIsNoneShowsWhereItIsSeen) {
  for (const int64_t head_size : kHeadSizes) {
    expect_nan_to_show_where_it_is_seen(GetParam(), head_size);
  }
}

}  // namespace
}  // namespace sherd::ops
