#include "llm/bench/matmul_limit.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include "ops/head_products.h"

namespace llm::bench {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kCycledBytes = 128 << 20;
constexpr int kRepeats = 5;

double median_seconds(const std::function<void(int)>& run) {
  run(0);  // makes the product's code
  std::vector<double> times;
  for (int i = 1; i <= kRepeats; ++i) {
    const auto start = Clock::now();
    run(i);
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[kRepeats / 2];
}

at::Tensor random(at::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::randn(sizes, at::kFloat).to(dtype);
}

// Forward, towards the input, and towards the weight; each weight and its gradient in turn.
double linear_seconds(const MatmulShape& shape, c10::ScalarType dtype) {
  const auto bytes = shape.inputs * shape.outputs * static_cast<std::int64_t>(elementSize(dtype));
  const std::int64_t copies =
      std::clamp<std::int64_t>(kCycledBytes / std::max<std::int64_t>(bytes, 1), 1, kRepeats + 1);
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> gradients;  // touched before they are timed
  for (std::int64_t i = 0; i < copies; ++i) {
    weights.push_back(random({shape.outputs, shape.inputs}, dtype));
    gradients.push_back(at::empty(weights.back().sizes(), weights.back().options()).fill_(0));
  }
  const auto at_turn = [&](std::vector<at::Tensor>& all, int i) -> at::Tensor& {
    return all[static_cast<size_t>(i) % all.size()];
  };
  at::Tensor input = random({shape.rows, shape.inputs}, dtype);
  at::Tensor output = random({shape.rows, shape.outputs}, dtype);
  const at::Tensor grad_output = random({shape.rows, shape.outputs}, dtype);
  at::Tensor grad_input = at::empty(input.sizes(), input.options());
  using sherd::ops::head_input_gradient;
  using sherd::ops::head_logits;
  return median_seconds([&](int i) { head_logits(output, input, at_turn(weights, i)); }) +
         median_seconds(
             [&](int i) { head_input_gradient(grad_input, grad_output, at_turn(weights, i)); }) +
         median_seconds([&](int i) { at::mm_out(at_turn(gradients, i), grad_output.t(), input); });
}

// Attention's products have three forms, of the same operations each, and each form is used once
// forward or backward for both scores and what they mix: of queries and keys, of scores and values,
// of transposed scores and queries.
double batched_seconds(const MatmulShape& shape, c10::ScalarType dtype) {
  const at::Tensor queries = random({shape.batch, shape.rows, shape.inputs}, dtype);
  const at::Tensor keys = random({shape.batch, shape.outputs, shape.inputs}, dtype);
  at::Tensor scores = random({shape.batch, shape.rows, shape.outputs}, dtype);
  at::Tensor mixed = at::empty(queries.sizes(), queries.options());
  at::Tensor grad_keys = at::empty(keys.sizes(), keys.options());
  const auto mix = [&](int /*i*/) { at::bmm_out(mixed, scores, keys); };
  const auto sum_up = [&](int /*i*/) { at::bmm_out(grad_keys, scores.transpose(1, 2), queries); };
  const auto score = [&](int /*i*/) { at::bmm_out(scores, queries, keys.transpose(1, 2)); };
  return median_seconds(mix) + median_seconds(sum_up) + median_seconds(score);
}

}  // namespace

double matmul_seconds(const std::vector<MatmulShape>& shapes, c10::ScalarType dtype) {
  const c10::InferenceMode no_gradients;
  double seconds = 0;
  for (const MatmulShape& shape : shapes) {
    const double once =
        shape.batch > 1 ? batched_seconds(shape, dtype) : linear_seconds(shape, dtype);
    seconds += once * static_cast<double>(shape.count);
  }
  return seconds;
}

double matmul_operations(const std::vector<MatmulShape>& shapes) {
  double operations = 0;
  for (const MatmulShape& shape : shapes) {
    operations += 3.0 * 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.inputs) *
                  static_cast<double>(shape.outputs) *
                  static_cast<double>(shape.count * shape.batch);
  }
  return operations;
}

}  // namespace llm::bench
