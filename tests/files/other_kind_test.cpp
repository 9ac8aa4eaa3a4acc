#include "files/other_kind.h"

#include <gtest/gtest.h>

#include "files/input.h"
#include "files/json.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace sherd::files {
namespace {

using namespace std::string_literals;
using test::expect_error;

TEST(GitLfsPointer, IsRefusedWhateverItIsReadAs) {
  const test::TempFolder folder;
  const std::string path = folder.write(
      "tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 10\n");
  const std::string message =
      path + ": found a Git LFS pointer, not the file itself: run `git lfs pull` in its folder";
  expect_error([&] { (void)read_file(path, kMaxConfigBytes); }, ExitCode::BadData, {message});
  expect_error([&] { (void)read_json_object(path); }, ExitCode::BadData, {message});
  EXPECT_NO_THROW(refuse_git_lfs_pointer(path, "version 2"));
}

TEST(Utf16, IsToldWithItsByteOrder) {
  const auto refused = [](const std::string& bytes, const std::string& encoding) {
    expect_error([&] { refuse_utf16("a.json", bytes); }, ExitCode::BadData,
                 {"a.json: is " + encoding + " text, expected UTF-8: save it as UTF-8 (iconv -f " +
                  encoding + " -t UTF-8 OLD > NEW)"});
  };
  refused("\xff\xfe{\0}\0"s, "UTF-16");
  refused("\xfe\xff\0{\0}"s, "UTF-16");
  refused("\xff\xfe\0\0{\0\0\0"s, "UTF-32");
  refused("\0\0\xfe\xff\0\0\0{"s, "UTF-32");
  refused("{\0}\0"s, "UTF-16LE");
  refused("\0{\0}"s, "UTF-16BE");
  refused("{\0\0\0}\0\0\0"s, "UTF-32LE");
  refused("\0\0\0{\0\0\0}"s, "UTF-32BE");
}

TEST(Utf16, IsNotSeenInOtherBytes) {
  for (const std::string& bytes :
       {""s, "{"s, "{}"s, "\xef\xbb\xbf{}"s, "{\0x}"s, "\0\1\2\3"s, "\0\0\0\0"s, "\xff\0"s}) {
    EXPECT_NO_THROW(refuse_utf16("a.json", bytes)) << bytes;
  }
}

TEST(Archive, IsToldWithWhatItIs) {
  const auto refused = [](const std::string& bytes, const std::string& what) {
    expect_error([&] { refuse_archive("a.jsonl", bytes); }, ExitCode::BadData,
                 {"a.jsonl: is " + what + ": unpack it, or save it as CSV in UTF-8"});
  };
  refused("BZh91AY", "compressed with bzip2");
  refused(
      "\xfd"
      "7zXZ\0"s,
      "compressed with xz");
  refused("\x04\x22\x4d\x18", "compressed with lz4");
  refused("PK\x03\x04", "a zip archive, as Excel workbooks are too");
  for (const std::string& bytes : {""s, "{"s, "BZ"s, "PK"s, "\x1f\x8b"s}) {
    EXPECT_NO_THROW(refuse_archive("a.jsonl", bytes)) << bytes;
  }
}

TEST(Utf16, OfAConfigurationIsTold) {
  const test::TempFolder folder;
  const std::string path = folder.write("config.json", "\xff\xfe{\0}\0"s);
  expect_error([&] { (void)read_json_object(path); }, ExitCode::BadData,
               {path + ": is UTF-16 text"});
}

}  // namespace
}  // namespace sherd::files
