#include "ops/cuda/attention_trial.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include "ops/cuda/cudnn_attention.h"
#include "ops/cuda/dispatch.h"
#include "ops/cuda/flash_attention.h"

namespace sherd::ops::cuda {
namespace {

constexpr int64_t kTrialDocuments = 2;
constexpr int64_t kTrialTokens = 192;  // more than a head has, and no multiple of 128
constexpr int64_t kTrialWindow = 100;  // no multiple of a kernel's blocks

// Numbers between −size and size that follow no pattern: the fraction of a steep sine. LibTorch's
// generators of random numbers are the run's, and stay as they are.
at::Tensor made_up(const at::Tensor& like, at::IntArrayRef shape, double step, double size = 1) {
  const int64_t count = c10::multiply_integers(shape);
  return at::arange(count, like.options().dtype(at::kDouble))
      .mul_(step)
      .sin_()
      .mul_(43758.5453)
      .frac_()
      .mul_(size)
      .view(shape)
      .to(like.scalar_type());
}

// As near as the parity tests ask of attention in this dtype; a NaN is not.
at::Tensor is_near(const at::Tensor& found, const at::Tensor& expected) {
  const double tolerance = found.scalar_type() == at::kBFloat16 ? 3e-2 : 4e-3;
  const at::Tensor largest = expected.abs().max();
  return (found.to(at::kFloat) - expected).abs().max() <= largest * tolerance;
}

// Queries are large, so that each sees a few keys above all, early ones and late ones: what is
// wrong at any position shows.
AttentionInputs trial_inputs(const AttentionInputs& like) {
  constexpr double kLarge = 9;
  const int64_t tokens = kTrialDocuments * kTrialTokens, size = like.query.size(2);
  const int64_t key_heads = like.key.size(1);
  return {made_up(like.query, {tokens, like.query.size(1), size}, 12.9898, kLarge),
          made_up(like.query, {tokens, key_heads, size}, 78.233),
          made_up(like.query, {tokens, key_heads, size}, 37.719),
          Documents::of_equal_length(kTrialDocuments, kTrialTokens),
          like.slopes,
          like.kernel,
          {.window = like.scores.window == 0 ? 0 : kTrialWindow}};
}

AttentionOutput attention_by(AttentionKernel kernel, const AttentionInputs& inputs) {
  return kernel == AttentionKernel::Cudnn ? cudnn_attention(inputs) : flash_attention(inputs);
}
AttentionGradients attention_backward_by(AttentionKernel kernel, const AttentionInputs& inputs,
                                         const AttentionOutput& output, const at::Tensor& grad) {
  return kernel == AttentionKernel::Cudnn ? cudnn_attention_backward(inputs, output, grad)
                                          : flash_attention_backward(inputs, output, grad);
}

at::Tensor agrees_with_plain(const AttentionInputs& inputs, AttentionKernel kernel) {
  const AttentionInputs wide{inputs.query.to(at::kFloat),
                             inputs.key.to(at::kFloat),
                             inputs.value.to(at::kFloat),
                             inputs.documents,
                             inputs.slopes,
                             inputs.kernel,
                             inputs.scores};
  const at::Tensor grad = made_up(
      inputs.query, {inputs.query.size(0), inputs.query.size(1) * inputs.query.size(2)}, 53.187);
  const AttentionOutput found = attention_by(kernel, inputs);
  const AttentionOutput expected = plain_backend().attention(wide);
  const AttentionGradients gradients = attention_backward_by(kernel, inputs, found, grad);
  const AttentionGradients of_plain =
      plain_backend().attention_backward(wide, expected, grad.to(at::kFloat));
  return is_near(found.mixed_TD, expected.mixed_TD)
      .logical_and(is_near(gradients.query, of_plain.query))
      .logical_and(is_near(gradients.key, of_plain.key))
      .logical_and(is_near(gradients.value, of_plain.value));
}

}  // namespace

std::string problem_of_attention(const AttentionInputs& like, AttentionKernel kernel) {
  try {
    return read_flag(agrees_with_plain(trial_inputs(like), kernel))
               ? ""
               : "in a trial its results differed from those of matrix products";
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::AcceleratorError&) {
    throw;
  } catch (const c10::Error& error) {
    return "a trial failed: " + first_line_of(error);
  }
}

std::string first_line_of(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

}  // namespace sherd::ops::cuda
