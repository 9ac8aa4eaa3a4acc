#include "llm/setup/batch_tensors.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include "sherd/to_device.h"

namespace llm::setup {

using sherd::ops::Documents;

model::TokenBatch to_tensors(const inputs::Batch& batch) {
  return {at::tensor(batch.input_ids, at::kLong), at::tensor(batch.labels, at::kLong),
          Documents(batch.bounds),
          batch.reference_logps.empty() ? at::Tensor()
                                        : at::tensor(batch.reference_logps, at::kDouble)};
}

at::Tensor loss_sum(sherd::Sharded<model::CausalLm>& model, const model::TokenBatch& batch) {
  // Labels stay on the host, which has to know how many there are.
  return model.run([&labels = batch.labels_T](
                       model::CausalLmImpl& lm, const at::Tensor& ids,
                       const Documents& documents) { return lm.loss_sum(ids, labels, documents); },
                   batch.ids_T, batch.documents);
}

model::ObjectiveLoss objective_sum(sherd::Sharded<model::CausalLm>& model,
                                   const model::TokenBatch& batch,
                                   const sherd::Objective& objective) {
  model::ObjectiveInputs inputs{objective};
  if (batch.reference_logps_N.defined()) {
    inputs.reference_logps_N = sherd::to_device(batch.reference_logps_N, model.world().device());
  }
  model::ObjectiveLoss found;
  found.loss_sum = model.run(
      [&](model::CausalLmImpl& lm, const at::Tensor& ids, const Documents& documents) {
        model::ObjectiveLoss loss = lm.objective_sum(ids, batch.labels_T, documents, inputs);
        found.figures_F = std::move(loss.figures_F);
        return std::move(loss.loss_sum);
      },
      batch.ids_T, batch.documents);
  return found;
}

at::Tensor logps(sherd::Sharded<model::CausalLm>& model, const model::TokenBatch& batch) {
  const at::NoGradGuard no_gradient;
  return model.run(
      [&](model::CausalLmImpl& lm, const at::Tensor& ids, const Documents& documents) {
        return lm.logps(ids, batch.labels_T, documents);
      },
      batch.ids_T, batch.documents);
}

}  // namespace llm::setup
