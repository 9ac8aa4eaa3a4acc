#include "ops/attention.h"

#include <cmath>
#include <limits>

#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

struct Shape {
  int64_t batch, heads, key_heads, tokens, head_size;
};
// Blocks hold 64 or 128 queries: less than one, exactly one and two, and sizes that do not divide.
const Shape kShapes[] = {{2, 4, 2, 5, 6},   {1, 6, 2, 64, 4}, {3, 2, 2, 65, 8},  {1, 2, 2, 128, 4},
                         {2, 4, 1, 130, 6}, {1, 1, 1, 1, 2},  {2, 4, 2, 260, 8}, {0, 4, 2, 7, 6}};

class AttentionTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionTest, dtypes(), dtype_name);

at::Tensor plain(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const int64_t share = query.size(1) / key.size(1), tokens = query.size(2);
  const at::Tensor scores = at::matmul(query, key.repeat_interleave(share, 1).transpose(-1, -2)) /
                            std::sqrt(static_cast<double>(query.size(3)));
  const at::Tensor future =
      at::full({tokens, tokens}, -std::numeric_limits<double>::infinity(), query.options()).triu(1);
  return at::matmul(at::softmax(scores + future, -1), value.repeat_interleave(share, 1))
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
    const auto of = [](const auto& formula) {
      return [formula](const Tensors& in) {
        return formula(in[0].transpose(1, 2), in[1].transpose(1, 2), in[2].transpose(1, 2));
      };
    };
    expect_parity(of(attention), of(plain), leaves);
  }
}

TEST_P(AttentionTest, ARowDoesNotDependOnTheOthersNorOnPaddingBehindIt) {
  const Tensors in = random_leaves({{3, 4, 70, 8}, {3, 2, 70, 8}, {3, 2, 70, 8}}, GetParam());
  const at::Tensor all = attention(in[0], in[1], in[2]);
  const auto row = [](const at::Tensor& tensor) { return tensor.narrow(0, 1, 1); };
  EXPECT_TRUE(attention(row(in[0]), row(in[1]), row(in[2])).equal(row(all)));
  at::Tensor key = in[1].detach().clone(), value = in[2].detach().clone();
  key.slice(2, 50).fill_(7);
  value.slice(2, 50).fill_(1e6);
  EXPECT_TRUE(attention(in[0], key, value).slice(1, 0, 50).equal(all.slice(1, 0, 50)));
}

TEST_P(AttentionTest, DecodingGivesWhatTheWholeTextGives) {
  const Tensors in = random_leaves({{3, 4, 9, 8}, {3, 2, 9, 8}, {3, 2, 9, 8}}, GetParam());
  const at::Tensor all = attention(in[0], in[1], in[2]);
  const at::Tensor positions = at::tensor({8, 0, 4}, at::kLong);
  const auto at_positions = [&](const at::Tensor& per_token, int64_t row) {
    return per_token[row].narrow(0, positions[row].item<int64_t>(), 1);
  };
  at::Tensor query = at::full({3, 4, 1, 8}, 0.0, in[0].options());
  for (int64_t row = 0; row < 3; ++row) {
    query[row].copy_(in[0].detach()[row].narrow(1, positions[row].item<int64_t>(), 1));
  }
  const at::Tensor decoded = decode_attention(query, in[1].detach(), in[2].detach(), positions);
  for (int64_t row = 0; row < 3; ++row) {
    expect_close(decoded[row], at_positions(all, row).detach(), tolerance_of(GetParam()), "row");
  }
}

}  // namespace
}  // namespace sherd::ops
