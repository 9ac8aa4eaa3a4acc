#pragma once
// What the operating system says, in words.

#include <string>

#include <sys/types.h>

#include "sherd/error.h"

namespace sherd::files {

/// The text of an errno value: "No such file or directory".
[[nodiscard]] std::string errno_text(int error);

/// Throws an Error with `code`, whose message is `what` and the text of errno value `error`: NoRoom
/// where that says that a disk or a quota is full.
[[noreturn]] void throw_errno(ExitCode code, const std::string& what, int error);

/// What a file of this mode (`stat::st_mode`) is: "a regular file", "a folder", "a pipe".
[[nodiscard]] std::string kind_text(mode_t mode);

/// Where a relative path begins: "; relative paths begin here, in /home/me"; empty for an absolute
/// one.
[[nodiscard]] std::string where_it_begins(const std::string& path);

}  // namespace sherd::files
