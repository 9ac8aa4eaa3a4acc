#pragma once
// Names of a checkpoint's files.

#include <string>

namespace sherd::detail {

inline constexpr const char* kManifestName = "manifest.json";

[[nodiscard]] std::string shard_file_name(int rank, int world_size);

}  // namespace sherd::detail
