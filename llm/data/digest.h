#pragma once
// What a file's content is known by.

#include <filesystem>
#include <string>
#include <string_view>

namespace llm::data {

/// SHA-256, 64 hexadecimal digits.
[[nodiscard]] std::string sha256(std::string_view bytes);
/// Of a file's bytes. Throws sherd::Error(InputMissing) if it cannot be read.
[[nodiscard]] std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace llm::data
