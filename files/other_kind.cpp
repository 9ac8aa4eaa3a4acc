#include "files/other_kind.h"

#include <array>
#include <utility>

#include "sherd/error.h"

namespace sherd::files {
namespace {

using namespace std::string_view_literals;

// In the order in which they are tried: the mark of UTF-16LE begins that of UTF-32LE. iconv takes
// the byte order of "UTF-16" and "UTF-32" from the mark.
constexpr std::array<std::pair<std::string_view, const char*>, 4> kMarks = {{
    {"\xff\xfe\0\0"sv, "UTF-32"},
    {"\0\0\xfe\xff"sv, "UTF-32"},
    {"\xff\xfe"sv, "UTF-16"},
    {"\xfe\xff"sv, "UTF-16"},
}};

// Which of the first four bytes are zero where the first characters are ASCII.
constexpr std::array<std::pair<std::string_view, const char*>, 4> kZeros = {{
    {"x000"sv, "UTF-32LE"},
    {"000x"sv, "UTF-32BE"},
    {"x0x0"sv, "UTF-16LE"},
    {"0x0x"sv, "UTF-16BE"},
}};

struct ArchiveKind {
  std::string_view mark;
  const char* what;
};

constexpr std::array<ArchiveKind, 4> kArchives = {{
    {"BZh"sv, "compressed with bzip2"},
    {"\xfd"
     "7zXZ\0"sv,
     "compressed with xz"},
    {"\x04\x22\x4d\x18"sv, "compressed with lz4"},
    {"PK\x03\x04"sv, "a zip archive, as Excel workbooks are too"},
}};

const char* encoding_of(std::string_view begin) {
  for (const auto& [mark, encoding] : kMarks) {
    if (begin.starts_with(mark)) {
      return encoding;
    }
  }
  std::string zeros;
  for (const char byte : begin.substr(0, 4)) {
    zeros += byte == '\0' ? '0' : 'x';
  }
  for (const auto& [pattern, encoding] : kZeros) {
    if (zeros == pattern) {
      return encoding;
    }
  }
  return nullptr;
}

}  // namespace

void refuse_git_lfs_pointer(const std::string& path, std::string_view begin) {
  if (begin.starts_with("version https://git-lfs.github.com/spec/")) {
    throw Error(ExitCode::BadData,
                path +
                    ": found a Git LFS pointer, not the file itself: run `git lfs pull` in its "
                    "folder");
  }
}

void refuse_archive(const std::string& path, std::string_view begin) {
  for (const ArchiveKind& kind : kArchives) {
    if (begin.starts_with(kind.mark)) {
      throw Error(ExitCode::BadData,
                  path + ": is " + kind.what +
                      ": unpack it, or save it as CSV in UTF-8; of compressed files, .gz and .zst "
                      "are read");
    }
  }
}

void refuse_utf16(const std::string& place, std::string_view begin) {
  if (const char* encoding = encoding_of(begin)) {
    throw Error(ExitCode::BadData, place + ": is " + encoding +
                                       " text, expected UTF-8: save it as UTF-8 (iconv -f " +
                                       encoding + " -t UTF-8 OLD > NEW)");
  }
}

}  // namespace sherd::files
