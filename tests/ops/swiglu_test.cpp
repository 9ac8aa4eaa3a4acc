#include "ops/swiglu.h"

#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include "tests/ops/parity.h"

namespace sherd::ops {
namespace {

class SwiGluTest : public EveryDtype {};
INSTANTIATE_TEST_SUITE_P(Dtypes, SwiGluTest, dtypes(), dtype_name);

TEST_P(SwiGluTest, AgreesWithThePlainFormula) {
  expect_parity([](const Tensors& in) { return swiglu(in[0], in[1]); },
                [](const Tensors& in) { return at::silu(in[0]) * in[1]; },
                random_leaves({{3, 5, 17}, {3, 5, 17}}, GetParam()));
}

TEST_P(SwiGluTest, AgreesWithoutRows) {
  expect_parity([](const Tensors& in) { return swiglu(in[0], in[1]); },
                [](const Tensors& in) { return at::silu(in[0]) * in[1]; },
                random_leaves({{0, 17}, {0, 17}}, GetParam()));
}

}  // namespace
}  // namespace sherd::ops
