#include "llm/eval/batch_tensors.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace llm::eval {

namespace {

constexpr int64_t kIdleTokens = 2;  // one to read and one to predict

at::Tensor matrix(const std::vector<std::int64_t>& values, int64_t rows, int64_t cols) {
  return at::tensor(values, at::kLong).view({rows, cols});
}

}  // namespace

BatchTensors to_tensors(const data::Batch& batch) {
  if (batch.rows == 0) {
    return {at::zeros({1, kIdleTokens}, at::kLong),
            at::full({1, kIdleTokens}, data::kUnsupervised, at::kLong),
            at::ones({1, kIdleTokens}, at::kLong)};
  }
  return {matrix(batch.input_ids, batch.rows, batch.cols),
          matrix(batch.labels, batch.rows, batch.cols),
          matrix(batch.attention_mask, batch.rows, batch.cols)};
}

at::Tensor loss_sum(sherd::Sharded<model::CausalLm>& model, const BatchTensors& batch) {
  return model.run([](model::CausalLmImpl& lm, const at::Tensor& ids, const at::Tensor& labels,
                      const at::Tensor& mask) { return lm.loss_sum(ids, labels, mask); },
                   batch.input_ids_BT, batch.labels_BT, batch.attention_mask_BT);
}

}  // namespace llm::eval
