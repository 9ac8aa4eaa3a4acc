#include "llm/setup/run_module.h"

#include <utility>

#include "llm/adapters/adapt.h"
#include "llm/adapters/peft_config.h"
#include "llm/model/quantized.h"
#include "llm/setup/trainable_parameters.h"

namespace llm::setup {

config::RunConfig with_adapter_folder(config::RunConfig config) {
  config.adapter = adapters::with_folder(config.adapter);
  return config;
}

void prepare_run_module(model::CausalLm& module, const config::RunConfig& config) {
  if (config.adapter.kind == config::AdapterKind::Lora) {
    adapters::adapt(*module, config.adapter);
  } else {
    freeze_all_but(*module, config.model.trainable);
  }
  if (config.model.quantize == config::Quantize::Q8_0) {
    model::quantize_q8_0(*module);
  }
}

PrepareModule preparation_of(const config::RunConfig& config) {
  return [config](model::CausalLm& module) { prepare_run_module(module, config); };
}

}  // namespace llm::setup
