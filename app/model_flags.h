#pragma once
// The flags that select a verb's model, its device and its chat template.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "app/hub_names.h"
#include "llm/config/run_config.h"
#include "llm/eval/evaluated_model.h"

namespace app {

struct ModelFlags {
  std::string model;
  std::string checkpoint;                   ///< of a run; empty: the newest
  std::string base;                         ///< of a PEFT adapter; empty: what its config names
  std::string dtype;                        ///< else the run's
  std::vector<std::string> ignored_fields;  ///< in addition to the run's
  llm::config::DeviceKind device = llm::config::DeviceKind::Auto;
};

/// Adds --model (also without its name), --checkpoint, --base, --dtype, --device and
/// --ignore-fields.
void add_model_flags(CLI::App& verb, ModelFlags& flags);

/// Replaces names on a hub: of the model, and of the base of an adapter.
void resolve_model(HubNames& names, ModelFlags& flags);

/// Takes `--checkpoint FOLDER` alone as the model. Throws CLI::RequiredError if both are missing.
void take_model(ModelFlags& flags);

/// Returns llm::eval::find_evaluated() with what the flags change. Throws as it does.
[[nodiscard]] llm::eval::EvaluatedModel find_model(const ModelFlags& flags);

/// Adds `--template NAME|FILE`, the `choice` of llm::eval::chat_of().
CLI::Option* add_template_flag(CLI::App& verb, std::string& choice);

}  // namespace app
