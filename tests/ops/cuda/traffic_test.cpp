// The bytes that each kernel of ops/cuda moves, in bf16, counted by the emulator: those that its
// comment says, and those of the table that scripts/kernel_table prints.

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "ops/cuda/launches.h"
#include "ops/q8_0.h"
#include "tests/emulator/emulator.h"
#include "tests/ops/cuda/played.h"

namespace sherd::ops::cuda {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

using Moved = std::map<std::string, emulator::Traffic>;

// Of one kernel: bytes per element of its largest array, and all other bytes.
struct Expected {
  int64_t elements = 0;
  emulator::Traffic per_element;
  emulator::Traffic more;
};

// kernel, bytes read and written per element of its largest array.
std::map<std::string, emulator::Traffic> table() {
  std::ifstream file(std::string(SHERD_TEST_SOURCE_DIR) + "/tests/data/kernel_traffic.tsv");
  std::map<std::string, emulator::Traffic> rows;
  std::string kernel, heading;
  std::getline(file, heading);
  for (emulator::Traffic bytes; file >> kernel >> bytes.read >> bytes.written;) {
    rows[kernel] = bytes;
  }
  return rows;
}

void expect_moved(const Moved& moved, const std::string& kernel, const Expected& expected) {
  SCOPED_TRACE(kernel);
  ASSERT_EQ(moved.count(kernel), 1U);
  EXPECT_EQ(moved.at(kernel).read,
            expected.elements * expected.per_element.read + expected.more.read);
  EXPECT_EQ(moved.at(kernel).written,
            expected.elements * expected.per_element.written + expected.more.written);
  EXPECT_EQ(table()[kernel], expected.per_element) << "tests/data/kernel_traffic.tsv";
}

Moved moved_by(const std::function<void(const Backend&)>& work) {
  static_cast<void>(emulator::take_traffic());
  work(tested_backend());
  return emulator::take_traffic();
}

at::Tensor ones(at::IntArrayRef shape) {
  return at::ones(shape, at::kBFloat16);
}

constexpr int64_t kTrafficRows = 96, kTrafficWidth = 1024;
constexpr int64_t kTrafficNumel = kTrafficRows * kTrafficWidth;

// Two warps for a row, four rows at once.
TEST(Traffic, OfNorms) {
  const at::Tensor rows = ones({kTrafficRows, kTrafficWidth}), weight = ones({kTrafficWidth});
  const NormParameters parameters{weight, weight, 1e-5};
  NormOutput output;
  const Moved forward = moved_by([&](const Backend& backend) {
    output = backend.norm({rows, rows}, parameters);
  });
  expect_moved(forward, "norm", {kTrafficNumel, {8, 4}, {0, 8 * kTrafficRows}});
  const Moved back = moved_by([&](const Backend& backend) {
    static_cast<void>(backend.norm_backward({rows, rows}, output.sum, parameters, output.statistics,
                                            {true, true}));
  });
  const int64_t blocks = norm_parts(Dtype::BFloat16, kTrafficRows, kTrafficWidth);
  EXPECT_EQ(blocks, kTrafficRows / 4);
  expect_moved(
      back, "norm_backward",
      {kTrafficNumel,
       {6, 2},
       {8 * 2 * kTrafficRows + blocks * 4 * 2 * kTrafficWidth, 2 * blocks * 4 * kTrafficWidth}});
}

TEST(Traffic, OfNormsOfRowsThatAreReadTwice) {
  constexpr int64_t kFewRows = 4, kWide = 8200, kWideNumel = kFewRows * kWide;
  const at::Tensor rows = ones({kFewRows, kWide}), weight = ones({kWide});
  const NormParameters parameters{weight, {}, 1e-5};
  const NormOutput output = tested_backend().norm({rows, {}}, parameters);
  const Moved back = moved_by([&](const Backend& backend) {
    static_cast<void>(
        backend.norm_backward({rows, rows}, rows, parameters, output.statistics, {true, false}));
  });
  expect_moved(back, "norm_input_gradient", {kWideNumel, {14, 2}, {8 * 8 * kFewRows, 0}});
  expect_moved(back, "norm_weight_gradient", {kWideNumel, {5, 0}, {0, 4 * kWide}});
}

TEST(Traffic, OfActivations) {
  const at::Tensor rows = ones({kTrafficRows, kTrafficWidth}), bias = ones({kTrafficWidth});
  at::Tensor grad = rows.clone();
  const Moved moved = moved_by([&](const Backend& backend) {
    static_cast<void>(backend.swiglu(rows, rows));
    static_cast<void>(backend.swiglu_backward_with_product(grad, rows, rows));
    static_cast<void>(backend.geglu(rows, rows));
    static_cast<void>(backend.geglu_backward_with_product(grad, rows, rows));
    static_cast<void>(backend.bias_gelu(rows, bias));
    static_cast<void>(backend.bias_gelu_backward(rows, rows, bias, true));
  });
  for (const std::string gate : {"swiglu", "geglu"}) {
    expect_moved(moved, gate, {kTrafficNumel, {4, 2}, {}});
    expect_moved(moved, gate + "_backward", {kTrafficNumel, {6, 6}, {}});
  }
  expect_moved(moved, "bias_gelu", {kTrafficNumel, {4, 2}, {}});
  expect_moved(moved, "bias_gelu_backward", {kTrafficNumel, {6, 2}, {0, 4 * kTrafficWidth}});
  const at::Tensor heads = ones({kTrafficRows, 8, 1, 128});
  const at::Tensor angles = at::ones({kTrafficRows, 1, 1, 64});
  expect_moved(moved_by([&](const Backend& backend) {
                 static_cast<void>(backend.rotary(heads, angles, angles, 1));
               }),
               "rotary", {heads.numel(), {6, 2}, {}});
}

TEST(Traffic, OfLogits) {
  at::Tensor logits = ones({kTrafficRows, kTrafficWidth});
  const at::Tensor targets = at::zeros({kTrafficRows}, at::kLong);
  const Moved moved = moved_by([&](const Backend& backend) {
    const CrossEntropy loss = backend.cross_entropy(logits, targets);
    backend.cross_entropy_backward(logits, targets, loss.log_sums_R, loss.loss_sum);
  });
  expect_moved(moved, "cross_entropy",
               {kTrafficNumel, {2, 0}, {10 * kTrafficRows, 8 * kTrafficRows}});
  expect_moved(moved, "cross_entropy_backward",
               {kTrafficNumel, {2, 2}, {8 * 16 * kTrafficRows, 0}});
}

TEST(Traffic, OfSums) {
  constexpr int64_t kParts = 2, kManyRows = kParts * 256, kColumns = 64;
  const at::Tensor matrix = ones({kManyRows, kColumns});
  const Moved sums = moved_by([&](const Backend& backend) {
    static_cast<void>(backend.column_sums(matrix));  // and then of the parts
  });
  const int64_t parts = 4 * kParts * kColumns;
  expect_moved(sums, "column_sums", {kManyRows * kColumns, {2, 0}, {parts, parts + 4 * kColumns}});
}

// The four threads of a block of 32 numbers read its scale each, which one transfer brings.
TEST(Traffic, OfWeightsIn8Bits) {
  const at::Tensor blocks = q8_0::quantized(at::ones({kTrafficRows, kTrafficWidth}));
  at::Tensor numbers = ones({kTrafficRows, kTrafficWidth});
  const Moved moved =
      moved_by([&](const Backend& backend) { backend.dequantize(numbers, blocks); });
  expect_moved(moved, "dequantize", {kTrafficNumel, {1, 2}, {4 * 2 * kTrafficNumel / 32, 0}});
}

// Tokens of different ids: each warp reads its own id and the one before, and then, with their
// places, its own and the next.
TEST(Traffic, OfEmbeddings) {
  constexpr int64_t kTokens = 64, kTile = 256;
  at::Tensor out = ones({kTokens, kTile});
  const Moved moved = moved_by([&](const Backend& backend) {
    backend.add_embedding_gradient(out, at::arange(kTokens, at::kLong), ones({kTokens, kTile}));
  });
  expect_moved(moved, "add_embedding_rows",
               {kTokens * kTile, {4, 2}, {kTokens * (4 + 4 + 2 * (4 + 8)) - 4 - (4 + 8), 0}});
  // A block's eight warps read the same 32 ids, and all ids once.
  constexpr int64_t kBlocksOfIds = kTokens / 32;
  expect_moved(moved, "sorted_ids", {kTokens, {0, 12}, {kBlocksOfIds * (8 * 32 + kTokens) * 8, 0}});
}

}  // namespace
}  // namespace sherd::ops::cuda
