#pragma once
// JSON files of strangers: what is wrong with one is told with its place.

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

namespace llm::text {

/// The bytes of a file. Throws sherd::Error InputMissing if it is not there, is no file, or cannot
/// be read.
std::string read_file(const std::filesystem::path& path);

/// Parses the bytes of `name` (a path, or path:line). Throws sherd::Error BadData with line and
/// column of a syntax error, bad UTF-8 included.
nlohmann::json parse_json(const std::string& bytes, const std::string& name);

/// `read_file` and `parse_json`. An empty file is BadData.
nlohmann::json read_json(const std::filesystem::path& path);

}  // namespace llm::text
