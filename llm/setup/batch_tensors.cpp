#include "llm/setup/batch_tensors.h"

#include <ATen/ops/tensor.h>

namespace llm::setup {

using sherd::ops::Documents;

model::TokenBatch to_tensors(const inputs::Batch& batch) {
  return {at::tensor(batch.input_ids, at::kLong), at::tensor(batch.labels, at::kLong),
          Documents(batch.bounds)};
}

at::Tensor loss_sum(sherd::Sharded<model::CausalLm>& model, const model::TokenBatch& batch) {
  // Labels stay on the host, which has to know how many there are.
  return model.run(
      [&labels = batch.labels_T, &keys = batch.dropout_keys_T](
          model::CausalLmImpl& lm, const at::Tensor& ids, const Documents& documents) {
        return lm.loss_sum(ids, labels, documents, keys);
      },
      batch.ids_T, batch.documents);
}

}  // namespace llm::setup
