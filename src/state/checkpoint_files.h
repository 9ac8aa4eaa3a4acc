#pragma once
// The files of a checkpoint: their names, the manifest as JSON, and which folders a checkpoint may
// replace.

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "sherd/checkpoint.h"

namespace sherd {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckpointPiece, file, begin, end, sha256)

namespace detail {

inline constexpr const char* kManifestName = "manifest.json";

[[nodiscard]] std::string shard_file_name(int rank, int world_size);

/// Returns the folder of a checkpoint saved as `folder`: without a trailing slash, and a link's
/// target. Throws Error(CannotWrite) for a path that is no folder's own name ("/", "..").
[[nodiscard]] std::string checkpoint_path(const std::string& folder);

/// Refuses to remove what a save did not write: a file, or a folder that holds anything but a
/// checkpoint's files, complete or damaged. A missing folder is fine. Throws Error(CannotWrite),
/// naming it.
void check_replaceable(const std::string& folder);

[[nodiscard]] std::string to_json(const CheckpointManifest& manifest);

/// Throws Error(BadData), naming `path` and the fault.
[[nodiscard]] CheckpointManifest manifest_from_json(const std::string& text,
                                                    const std::string& path);

/// Returns the number of blocks of `block_bytes` in a tensor of `bytes` bytes; 1 for 0, a digest of
/// the whole.
[[nodiscard]] int64_t blocks_in(int64_t bytes, int64_t block_bytes);

}  // namespace detail

}  // namespace sherd
