#pragma once
// Names of a checkpoint's files, and which folders a checkpoint may take the place of.

#include <string>

namespace sherd::detail {

inline constexpr const char* kManifestName = "manifest.json";

[[nodiscard]] std::string shard_file_name(int rank, int world_size);

/// The folder that a checkpoint saved as `folder` lies in: without a slash at its end, and a link's
/// target. Throws Error(CannotWrite) for a path that is no folder's own name ("/", "..").
[[nodiscard]] std::string checkpoint_path(const std::string& folder);

/// Refuses to remove what a save did not write: a file, or a folder that holds anything but a
/// checkpoint's files, whole or damaged. What is not there is fine. Throws Error(CannotWrite),
/// naming it.
void check_replaceable(const std::string& folder);

}  // namespace sherd::detail
