#include "llm/model/parts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"

namespace llm::model {

ProjectionImpl::ProjectionImpl(int64_t inputs, int64_t outputs, double std)
    : weight(
          register_parameter("weight", at::empty({outputs, inputs}, at::kFloat).normal_(0, std))) {}

at::Tensor ProjectionImpl::forward(const at::Tensor& input) const {
  return sherd::ops::linear(input, weight);
}

TokenEmbeddingImpl::TokenEmbeddingImpl(int64_t vocabulary, int64_t width, double std)
    : weight(register_parameter("weight",
                                at::empty({vocabulary, width}, at::kFloat).normal_(0, std))) {}

at::Tensor TokenEmbeddingImpl::forward(const at::Tensor& ids) const {
  return sherd::ops::embedding(ids, weight);
}

RmsNormImpl::RmsNormImpl(int64_t width, double epsilon)
    : weight(register_parameter("weight", at::ones({width}, at::kFloat))), epsilon_(epsilon) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& input) const {
  return sherd::ops::rms_norm(input, weight, epsilon_);
}

}  // namespace llm::model
