#pragma once
// Names and durable file operations of checkpoints.

#include <string>

namespace sherd::detail {

inline constexpr const char* kManifestName = "manifest.json";

[[nodiscard]] std::string shard_file_name(int rank, int world_size);

/// Makes the folder and those above it. Throws Error(CannotWrite), naming the path and why.
void make_folder(const std::string& folder);
/// Removes a folder and what is in it; one that is not there is fine. Throws Error(StorageIo).
void remove_folder(const std::string& folder);
/// Writes a small file under a temporary name, makes it durable and renames it.
void write_durably(const std::string& path, const std::string& content);
/// Gives a complete folder its name, in the place of an older one, and makes that durable.
void rename_folder(const std::string& from, const std::string& to);

}  // namespace sherd::detail
