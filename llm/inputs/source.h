#pragma once
// A data source before it is read: its files, their digest and format.

#include <filesystem>
#include <string>
#include <vector>

#include "llm/inputs/data_file.h"

namespace llm::inputs {

/// What tells whether a file is still the one whose digest was taken.
struct FileStamp {
  std::int64_t bytes = 0;
  std::string identity;  ///< device, inode, times of change
  bool operator==(const FileStamp&) const = default;
};

/// The files of a data set, which are read as one.
struct Source {
  DataFile file;  ///< without bytes
  std::vector<FileStamp> stamps;
};

/// Finds the files of a path, their format and their digest, in bounded memory. `digests`: a folder
/// that keeps digests of files that do not change; empty: none. Throws sherd::Error as
/// read_data_file().
[[nodiscard]] Source open_source(const std::filesystem::path& path, const FileReading& reading,
                                 const std::filesystem::path& digests);

/// The bytes of the files, for formats that are read as a whole. Throws sherd::Error(BadData) if
/// they have changed since the source was opened.
[[nodiscard]] DataFile whole_file(const Source& source);

/// Throws sherd::Error(BadData) if a file has changed since the source was opened.
void require_unchanged(const Source& source);

}  // namespace llm::inputs
