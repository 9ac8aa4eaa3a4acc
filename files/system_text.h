#pragma once
// What the operating system says, in words.

#include <string>

#include <sys/types.h>

namespace sherd::files {

/// The text of an errno value: "No such file or directory".
[[nodiscard]] std::string errno_text(int error);

/// What a file of this mode (`stat::st_mode`) is: "a regular file", "a folder", "a pipe".
[[nodiscard]] std::string kind_text(mode_t mode);

}  // namespace sherd::files
