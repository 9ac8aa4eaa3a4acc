#pragma once
// The control groups that limit this process.

#include <filesystem>
#include <string>
#include <vector>

namespace sherd::files {

/// Where the system tells of control groups. Tests have others.
struct ControlGroupPlaces {
  std::filesystem::path root = "/sys/fs/cgroup";
  std::filesystem::path own = "/proc/self/cgroup";
};

/// The folders of this process's group for a controller ("memory", "cpu") and of each group that
/// holds it, from its own up to the root, as far as they can be seen from here: each may set a
/// limit. Version 1 of control groups has a tree for each controller, version 2 one for all.
[[nodiscard]] std::vector<std::filesystem::path> control_groups(
    const std::string& controller, const ControlGroupPlaces& places = {});

}  // namespace sherd::files
