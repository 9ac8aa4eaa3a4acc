#pragma once
// The modules of a model that an adapter changes, by PEFT's rules.

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "llm/config/run_config.h"
#include "sherd/lora.h"

namespace llm::adapters {

/// A linear map that is adapted, and how.
struct AdaptedModule {
  std::string name;
  sherd::LoraShape shape;
};

/// Modules of a model, in its order.
struct ChosenModules {
  std::vector<AdaptedModule> adapted;
  std::vector<std::string> whole;  ///< trained as they are: adapter.modules_to_save
};

/// Applies the rules of PEFT's LoraConfig to the modules of `model`, which may be on meta:
/// - a list entry means a module's name, or one that ends in "." and the entry; a pattern is
/// matched
///   against whole names (Python's `re.fullmatch`); "all-linear" means every linear map but the
///   head
/// - `exclude` and modules that are trained whole come first
/// - `layers` filters what a list found by the ends of names; the layer's number follows
///   `layers_pattern`, or any name, the last one in a module's name
/// - keys of rank_pattern and alpha_pattern match `(.*\.)?(key)`, the first that matches counts
/// Throws sherd::Error, Usage or, for a section that a folder decided (its path), BadData: for a
/// pattern that does not compile, one that finds a module other than a linear map, and names that
/// find nothing, with the nearest ones.
[[nodiscard]] ChosenModules choose_modules(const torch::nn::Module& model,
                                           const config::AdapterSection& adapter);

/// True if linear maps of this model store their weights as [inputs, outputs]: GPT-2's Conv1D,
/// PEFT's `fan_in_fan_out`.
[[nodiscard]] bool has_transposed_weights(const torch::nn::Module& model);

/// For messages: the ranks and scales, "rank 8, scale 2" or "ranks 2 to 7, scales 1.28 to 4.5".
[[nodiscard]] std::string shapes_text(const ChosenModules& chosen);

}  // namespace llm::adapters
