#include "llm/eval/batch_tensors.h"

#include <ATen/ops/tensor.h>

namespace llm::eval {

using sherd::ops::Documents;

model::TokenBatch to_tensors(const data::Batch& batch) {
  return {at::tensor(batch.input_ids, at::kLong), at::tensor(batch.labels, at::kLong),
          Documents(batch.bounds)};
}

at::Tensor loss_sum(sherd::Sharded<model::CausalLm>& model, const model::TokenBatch& batch) {
  return model.run([](model::CausalLmImpl& lm, const at::Tensor& ids, const at::Tensor& labels,
                      const Documents& documents) { return lm.loss_sum(ids, labels, documents); },
                   batch.ids_T, batch.labels_T, batch.documents);
}

}  // namespace llm::eval
