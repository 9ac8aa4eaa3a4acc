#pragma once
// The manifest of a checkpoint as JSON.

#include <string>

#include "sherd/checkpoint.h"

namespace sherd::detail {

[[nodiscard]] std::string to_json(const CheckpointManifest& manifest);

/// Throws Error(BadData), naming `path` and what is wrong.
[[nodiscard]] CheckpointManifest manifest_from_json(const std::string& text,
                                                    const std::string& path);

}  // namespace sherd::detail
