#pragma once
// Hugging Face's config.json and generation_config.json.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include "llm/families/family.h"
#include "llm/model/causal_lm.h"
#include "llm/model/decoder_config.h"

namespace llm::io {

/// What a config.json says about a model.
struct HfConfig {
  const families::Family* family = nullptr;
  model::DecoderConfig shape;
  /// `torch_dtype` or `dtype`: of the weights on disk.
  std::optional<c10::ScalarType> dtype;
  /// Dropout that the file asks for, which no run applies: JsonFields::dropout().
  std::string dropout = "";
};

/// Fields of a config.json that are read as if they were not there.
struct IgnoredFields {
  std::vector<std::string> names = {};
  families::IgnoreBy by = families::IgnoreBy::Key;  ///< for messages
};

/// The content of a config.json, with its fields in file order. Throws Error: InputMissing;
/// BadData, with line and column, if it is not a JSON object, names a field twice, or is larger
/// than 16 MiB.
[[nodiscard]] nlohmann::ordered_json read_config_json(const std::string& path);

/// Reads a config.json as transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) or 5
/// (`rope_parameters`, `dtype`) write it; a field that is missing has the value it has there.
/// Throws Error: InputMissing if there is no such file; BadData, with file and field, for a value
/// that cannot be right, and for every `model_type` and field that changes the computation and is
/// not implemented: it is refused by name, never ignored.
/// A field that is not known is refused too, unless it says nothing (null, false, empty), is one of
/// those that change no computation, or one of `ignored`.
[[nodiscard]] HfConfig read_hf_config(const std::string& path, const IgnoredFields& ignored = {});

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kTokenizerFile = "tokenizer.json";

/// Checks that a model folder has these files. Throws sherd::Error, with what such a folder needs
/// and what to try: InputMissing; Usage for a run or a checkpoint in its place.
void require_model_folder(const std::string& folder, const std::vector<std::string>& files);

/// Reads `folder`/config.json. Throws as read_hf_config() and require_model_folder().
[[nodiscard]] HfConfig read_model_folder_config(const std::string& folder,
                                                const IgnoredFields& ignored = {});

/// Builds the model that a configuration describes, with random weights; inside sherd::on_meta()
/// shapes only.
[[nodiscard]] model::CausalLm build_model(const HfConfig& config);

/// A dtype as these files spell it: "bfloat16", "float16", "float32", "float64"; nothing for other
/// names.
[[nodiscard]] std::optional<c10::ScalarType> dtype_of_name(const std::string& name);
/// The inverse. Throws c10::Error for dtypes that have no name there.
[[nodiscard]] std::string name_of_dtype(c10::ScalarType dtype);

}  // namespace llm::io
