#pragma once
// The version of Sherd; CMake reads it from this file.

// For code that must compile with several versions: `SHERD_VERSION >= 200` means 0.2.0 or later.
#define SHERD_VERSION_MAJOR 0
#define SHERD_VERSION_MINOR 2
#define SHERD_VERSION_PATCH 0
#define SHERD_VERSION \
  (SHERD_VERSION_MAJOR * 10000 + SHERD_VERSION_MINOR * 100 + SHERD_VERSION_PATCH)

namespace sherd {

/// A version by the rules of semver.org. Until 1.0 a minor version may change the interface.
struct Version {
  int major = SHERD_VERSION_MAJOR;  ///< changes incompatibly
  int minor = SHERD_VERSION_MINOR;  ///< adds features
  int patch = SHERD_VERSION_PATCH;  ///< corrects faults
};

/// The version of the headers at compile time. PyTorch: `torch.__version__`.
inline constexpr Version kVersion = {};

}  // namespace sherd
