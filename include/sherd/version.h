#pragma once
// The version of Sherd, which CMake reads from here as well.

// For the preprocessor, where code must compile with several versions: `SHERD_VERSION >= 200` is
// 0.2.0 or later.
#define SHERD_VERSION_MAJOR 0
#define SHERD_VERSION_MINOR 2
#define SHERD_VERSION_PATCH 0
#define SHERD_VERSION \
  (SHERD_VERSION_MAJOR * 10000 + SHERD_VERSION_MINOR * 100 + SHERD_VERSION_PATCH)

namespace sherd {

/// A version by the rules of semver.org; until 1.0 a minor version may change the interface.
struct Version {
  int major = SHERD_VERSION_MAJOR;  ///< of incompatible changes
  int minor = SHERD_VERSION_MINOR;  ///< of additions
  int patch = SHERD_VERSION_PATCH;  ///< of corrections
};

/// That of the headers that a program is compiled with. PyTorch: `torch.__version__`.
inline constexpr Version kVersion = {};

}  // namespace sherd
