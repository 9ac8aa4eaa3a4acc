#include "llm/setup/run_module.h"

#include <utility>

#include "llm/setup/trainable_parameters.h"

namespace llm::setup {

void prepare_run_module(model::CausalLm& module, const config::RunConfig& config) {
  freeze_all_but(*module, config.model.trainable);
}

PrepareModule preparation_of(const config::RunConfig& config) {
  return [config](model::CausalLm& module) { prepare_run_module(module, config); };
}

}  // namespace llm::setup
