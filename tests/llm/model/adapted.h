#pragma once
// Adapters for small models.

#include <torch/utils.h>

#include "llm/model/causal_lm.h"
#include "sherd/lora.h"

namespace llm::model {

/// Adapters whose B is not zero, the same each time. One thread at a time: the generator is one for
/// all.
inline void add_adapters(CausalLm& model, const sherd::LoraOptions& options) {
  torch::manual_seed(7);
  sherd::lora(*model, options);
  for (const auto& item : model->named_parameters()) {
    if (item.key().ends_with("lora_B.weight")) {
      item.value().detach().normal_(0, 0.1);
    }
  }
}

}  // namespace llm::model
