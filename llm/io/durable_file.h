#pragma once

#include <string>
#include <string_view>

namespace llm::io {

/// Writes a small file so that a reader sees the old one or the whole new one, also after a crash:
/// under a temporary name, fsync, rename, fsync of the folder. Nothing is left behind on failure.
/// Throws Error: CannotWrite if it cannot be created, StorageIo if writing fails.
void write_durable_file(const std::string& path, std::string_view content);

}  // namespace llm::io
