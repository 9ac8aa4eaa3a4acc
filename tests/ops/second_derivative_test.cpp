// No operator has a second derivative: asked for one it says so, instead of leaving terms out.

#include <map>

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/bias_gelu.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/rms_norm.h"
#include "ops/rotary.h"
#include "ops/swiglu_linear.h"
#include "tests/ops/parity.h"
#include "tests/ops/rows_attention.h"

namespace sherd::ops {
namespace {

TEST(SecondDerivative, IsRefusedByEveryOperator) {
  const at::Tensor ids = at::randint(4, {6}, at::kLong);
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const Tensors in = random_leaves({{6, 4}, {4, 4}, {4}, {4}, {1, 2, 6, 4}}, dtype);
    const at::Tensor &rows = in[0], &weight = in[1], &scale = in[2], &bias = in[3], &heads = in[4];
    const RotaryTables tables = rotary_tables(at::arange(1, 3, at::kFloat), 6);
    const std::map<std::string, at::Tensor> outputs = {
        {"attention", rows_attention(heads, heads, heads)},
        {"bias_gelu", bias_gelu(rows, bias)},
        {"embedding", ops::embedding(ids, weight)},
        {"layer_norm", ops::layer_norm(rows, scale, bias, 1e-5)},
        {"dropout", dropout(rows, {0.5, ids, 1})},
        {"linear", ops::linear(rows, weight, bias)},
        {"lora_linear", ops::linear(rows, weight, bias, {.A = weight, .B = weight})},
        {"linear_cross_entropy", linear_cross_entropy(rows, weight, ids)},
        {"rms_norm", ops::rms_norm(rows, scale, 1e-5)},
        {"rotary", rotary(heads, tables)},
        {"swiglu_linear", swiglu_linear(rows, rows, weight)},
    };
    for (const auto& [name, output] : outputs) {
      try {
        output.sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
        ADD_FAILURE() << name << " gave one";
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what(),
                    testing::HasSubstr("sherd::" + name + " has no second derivative"));
      }
    }
  }
}

}  // namespace
}  // namespace sherd::ops
