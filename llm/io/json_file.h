#pragma once
// JSON files of a model folder.

#include <string>

#include <nlohmann/json.hpp>

namespace llm::io {

/// Reads a JSON object, keeping the order of its fields.
/// Throws Error: InputMissing if the file is not there or cannot be read; BadData, with line and
/// column, if it is no JSON object, names a field twice, or is larger than 16 MiB.
[[nodiscard]] nlohmann::ordered_json read_json_object(const std::string& path);

}  // namespace llm::io
