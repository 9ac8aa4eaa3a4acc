#pragma once
// The index of a model with several weight files: which tensor is in which file.

#include <filesystem>
#include <set>
#include <string>

namespace llm::hub {

inline constexpr const char* kWeightIndex = "model.safetensors.index.json";

/// Returns the files that an index names. Throws sherd::Error: BadData if it is not an index, names
/// no file, or names something other than a safetensors file of its folder; as files::read_json.
[[nodiscard]] std::set<std::string> weight_files(const std::filesystem::path& index);

}  // namespace llm::hub
