#pragma once

#include <string>

#include "llm/io/hf_config.h"
#include "llm/model/causal_lm.h"

namespace llm::io {

/// Builds the model that a configuration describes, with random weights; inside sherd::on_meta()
/// shapes only.
[[nodiscard]] model::CausalLm build_model(const HfConfig& config);

/// Reads `folder`/config.json. Throws as read_hf_config(), and InputMissing if there is no folder.
[[nodiscard]] HfConfig read_model_folder_config(const std::string& folder);

}  // namespace llm::io
