#pragma once
// The TOML side of the configuration.

#include <filesystem>
#include <string>

#include "llm/config/reading.h"

namespace llm::config {

constexpr std::size_t kLargestFile_bytes = 1 << 20;

/// Reads the file into `reading`; every fault goes into `reading.faults` with file:line.
void read_toml(const std::filesystem::path& file, Reading& reading);

/// The same with the contents of a file called `name`.
void read_toml_text(const std::string& text, const std::string& name, Reading& reading);

/// `text` as a TOML string, quoted and escaped.
[[nodiscard]] std::string quote(const std::string& text);

}  // namespace llm::config
