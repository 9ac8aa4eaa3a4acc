#pragma once
// The families of models that are implemented. A family is one file here and one line in
// families.cpp.

#include <string>
#include <vector>

#include "llm/families/json_fields.h"
#include "llm/model/causal_lm.h"
#include "llm/model/decoder_config.h"

namespace llm::families {

/// What a family's checkpoints hold besides the model's parameters.
struct TensorRules {
  /// Ends of the names of tensors that follow from the configuration, and are passed over.
  std::vector<const char*> derived;
};

/// How a family's config.json reads and how its models are built.
struct Family {
  const char* model_type;  ///< Hugging Face's
  /// The shape that a config.json describes. Throws sherd::Error(BadData), with file and field, for
  /// a value that cannot be right, and for one that changes the computation and is not implemented.
  model::DecoderConfig (*parse)(const JsonFields& fields);
  /// A model of that shape with random weights; inside sherd::on_meta() shapes only.
  model::CausalLm (*build)(const model::DecoderConfig& config);
  TensorRules tensors;
  /// Fields of config.json that do not change what these models compute, beside those of every
  /// family.
  std::vector<const char*> harmless_fields;
};

/// All of them.
[[nodiscard]] const std::vector<const Family*>& all_families();
/// The one of this `model_type`; null if it is not implemented.
[[nodiscard]] const Family* find_family(const std::string& model_type);

}  // namespace llm::families
