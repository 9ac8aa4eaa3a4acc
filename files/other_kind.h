#pragma once
// Files that are not of the kind that they are read as, recognised by their first bytes.

#include <cstddef>
#include <string>
#include <string_view>

namespace sherd::files {

/// The number of first bytes that the functions below look at.
inline constexpr std::size_t kRecognisedBytes = 64;

/// Refuses a Git LFS pointer: the text that a clone without Git LFS has in the place of a large
/// file. `begin`: the file's first kRecognisedBytes bytes, or more. Throws Error(BadData) with the
/// path and the remedy.
void refuse_git_lfs_pointer(const std::string& path, std::string_view begin);

/// Refuses archives and compressed files of kinds that are not read. Arguments and error as above.
void refuse_archive(const std::string& path, std::string_view begin);

/// Refuses text in UTF-16 or UTF-32, with a byte order mark or without one (then known by the zero
/// bytes of its first characters, which are ASCII in JSON). `place`: a path, or path:line; `begin`:
/// as above. Throws Error(BadData) with the encoding and the remedy.
void refuse_utf16(const std::string& place, std::string_view begin);

}  // namespace sherd::files
