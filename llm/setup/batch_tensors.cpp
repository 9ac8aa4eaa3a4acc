#include "llm/setup/batch_tensors.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include "sherd/lora.h"
#include "sherd/memory.h"

namespace llm::setup {

using sherd::ops::Documents;

model::TokenBatch to_tensors(const inputs::Batch& batch) {
  model::TokenBatch tensors{at::tensor(batch.input_ids, at::kLong),
                            at::tensor(batch.labels, at::kLong), Documents(batch.bounds)};
  if (batch.reference_logps) {
    tensors.reference_logps_N = at::tensor(*batch.reference_logps, at::kDouble);
  }
  return tensors;
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

at::Tensor logps(sherd::Sharded<model::CausalLm>& model, const model::TokenBatch& batch) {
  const at::NoGradGuard no_gradient;
  return model.run(
      [&](model::CausalLmImpl& lm, const at::Tensor& ids, const Documents& documents) {
        return lm.logps(ids, batch.labels_T, documents);
      },
      batch.ids_T, batch.documents);
}

at::Tensor base_logps(sherd::Sharded<model::CausalLm>& model, const model::TokenBatch& batch) {
  sherd::enable_lora(*model.module(), false);
  const std::shared_ptr<void> on_again(
      nullptr, [&](void* /*none*/) { sherd::enable_lora(*model.module(), true); });
  return logps(model, batch);
}

namespace {

bool has_adapter(const model::CausalLmImpl& model) {
  const auto modules = model.modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    const auto* const adapted = dynamic_cast<const sherd::LoraModule*>(module.get());
    return adapted != nullptr && adapted->lora() != nullptr;
  });
}

// Those that are known; else the model is its own reference, with its adapter off.
at::Tensor reference_logps(sherd::Sharded<model::CausalLm>& model, const model::TokenBatch& batch) {
  if (batch.reference_logps_N.defined()) {
    return sherd::to_device(batch.reference_logps_N, model.world().device());
  }
  TORCH_CHECK_VALUE(has_adapter(*model.module()),
                    "[objective_sum] got a batch without the log-probabilities of a reference, and "
                    "a model without an adapter");
  return base_logps(model, batch);
}

}  // namespace

model::ObjectiveLoss objective_sum(sherd::Sharded<model::CausalLm>& model,
                                   const model::TokenBatch& batch,
                                   const sherd::Objective& objective) {
  model::ObjectiveInputs inputs{objective};
  inputs.dropout_keys_T = batch.dropout_keys_T;
  if (objective.needs_reference()) {
    inputs.reference_logps_N = reference_logps(model, batch);
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

}  // namespace llm::setup
