#pragma once
// adapter_config.json of PEFT (0.21), read and written.

#include <string>

#include <torch/nn/module.h>

#include "llm/config/run_config.h"

namespace llm::adapters {

inline constexpr const char* kPeftConfigFile = "adapter_config.json";
inline constexpr const char* kPeftWeightsFile = "adapter_model.safetensors";

/// The content of an adapter_config.json.
struct PeftConfig {
  config::AdapterSection adapter;  ///< of kind Lora; `path` is the folder
  std::string base;                ///< base_model_name_or_path, as written; empty: it says none
  bool ties_weights = false;       ///< ensure_weight_tying
  std::string revision = {};       ///< of a base on a hub; empty: its main branch
};

/// True if a folder holds an adapter and no model.
[[nodiscard]] bool is_peft_folder(const std::string& folder);

/// Reads the folder's adapter_config.json. Throws sherd::Error: InputMissing; BadData, with file
/// and field, for a value that cannot be right, and for every field that changes the computation
/// and is not implemented: it is refused by name, unless it is neutral or says nothing (null,
/// false, empty).
[[nodiscard]] PeftConfig read_peft_config(const std::string& folder);

/// The folder of the base model: `base` if it is absolute or is there, else relative to the
/// adapter's folder where that is there; else `base` itself, perhaps a name on a hub.
[[nodiscard]] std::string base_folder_of(const PeftConfig& config);

/// `adapter` with the keys that its path's folder decides; itself without a path. dropout stays as
/// given. Throws sherd::Error: as read_peft_config(); Usage for a key that was set to another value
/// than the folder has.
[[nodiscard]] config::AdapterSection with_folder(const config::AdapterSection& adapter);

/// `given` with the keys that a folder decides, as `folder` has them: what was read of the folder
/// before, which may be gone by now. Throws sherd::Error(Usage) as with_folder().
[[nodiscard]] config::AdapterSection decided_by(const config::AdapterSection& folder,
                                                const config::AdapterSection& given);

/// The text by which PEFT reads an adapter of `model`, which is adapted. "all-linear" becomes the
/// names that it found: the last parts where these find the same, else whole names. `base`: a
/// folder or a name on a hub; `revision`: its commit there, empty for none.
[[nodiscard]] std::string peft_config_text(const torch::nn::Module& model,
                                           const config::AdapterSection& adapter,
                                           const std::string& base, bool tied_embedding,
                                           const std::string& revision = "");

}  // namespace llm::adapters
