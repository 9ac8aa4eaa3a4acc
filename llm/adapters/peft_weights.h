#pragma once
// adapter_model.safetensors of PEFT: its tensors, and reading them into a sharded model.

#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "llm/config/run_config.h"
#include "llm/model/causal_lm.h"
#include "sherd/fully_shard.h"
#include "sherd/safetensors.h"

namespace llm::adapters {

/// The file with the values of the adapter in adapter.path.
[[nodiscard]] std::string peft_weights_path(const config::AdapterSection& adapter);

/// PEFT's name of a parameter: "base_model.model." before its own.
[[nodiscard]] std::string peft_name(const std::string& parameter);

/// The tensors of an adapter's file, in the order of the model, which is adapted and may be on
/// meta.
[[nodiscard]] std::vector<sherd::SafetensorsSpec> peft_specs(const model::CausalLmImpl& model,
                                                             const config::AdapterSection& adapter,
                                                             c10::ScalarType dtype);

/// Checks that the file in adapter.path has exactly the tensors that the adapter consists of, in
/// their shapes. Throws sherd::Error: InputMissing; BadData, listing what is missing, has another
/// shape or is left over; BadData for an embedding that is the head too and that PEFT trained apart
/// from the head.
void require_peft_tensors(const model::CausalLmImpl& model, const config::AdapterSection& adapter);

/// Reads the adapter in adapter.path into the model, each rank its own slices; the base's
/// parameters keep their values. Collective. Throws sherd::Error as sherd::load_safetensors() does.
void load_adapter(sherd::Sharded<model::CausalLm>& model, const config::AdapterSection& adapter);

}  // namespace llm::adapters
