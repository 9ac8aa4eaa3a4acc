#pragma once
// The index of a model whose weights lie in several files: which tensor is in which.

#include <filesystem>
#include <set>
#include <string>

namespace llm::hub {

inline constexpr const char* kWeightIndex = "model.safetensors.index.json";

/// The files that an index names. Throws sherd::Error: BadData for what is no index, names none,
/// or names what is no safetensors file of its folder; as files::read_json.
[[nodiscard]] std::set<std::string> weight_files(const std::filesystem::path& index);

}  // namespace llm::hub
