#include "files/input.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "tests/files/odd_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace sherd::files {
namespace {

using test::expect_error;
using test::TempFolder;

TEST(ReadFile, GivesAllBytes) {
  const TempFolder folder;
  const std::string bytes("a\0b\n\xff", 5);
  EXPECT_EQ(read_file(folder.write("file", bytes), 5), bytes);
  EXPECT_EQ(read_file(folder.write("empty", ""), 0), "");
}

TEST(ReadFile, NamesTheLimit) {
  const TempFolder folder;
  const std::string file = folder.write("file", "123456");
  expect_error([&] { (void)read_file(file, 5); }, ExitCode::BadData,
               {file + ": 6 bytes; expected at most 5 bytes"});
  // A hole of a terabyte takes no disk space, and would take all memory.
  std::filesystem::resize_file(file, uint64_t{1} << 40);
  expect_error([&] { (void)read_file(file, kMaxConfigBytes); }, ExitCode::BadData,
               {file + ": 1099511627776 bytes; expected at most 16 MiB"});
}

TEST(ReadFile, RefusesWhatIsNoFileWithoutWaiting) {
  const TempFolder folder;
  const std::string pipe = test::make_pipe_file(folder.path() / "pipe");
  const auto refuse = [](const std::string& path, const std::string& kind) {
    expect_error([&] { (void)read_file(path, 100); }, ExitCode::BadData,
                 {path + ": expected a regular file, found " + kind});
  };
  refuse(pipe, "a pipe");
  refuse(folder.path(), "a folder");
  refuse("/dev/zero", "a device");
  refuse("/dev/null", "a device");
  std::filesystem::create_symlink(pipe, folder.path() / "link");
  refuse(folder.path() / "link", "a pipe");
}

TEST(ReadFile, ThatIsNotThereIsInputMissing) {
  const TempFolder folder;
  const std::string path = folder.path() / "none";
  expect_error([&] { (void)read_file(path, 100); }, ExitCode::InputMissing,
               {path + ": cannot be opened: No such file or directory"});
  std::filesystem::create_symlink("gone", path);
  expect_error([&] { (void)read_file(path, 100); }, ExitCode::InputMissing, {"No such file"});
}

TEST(ReadFile, SaysWhereARelativePathBegins) {
  expect_error([&] { (void)open_input("no/such/file"); }, ExitCode::InputMissing,
               {"no/such/file: cannot be opened: No such file or directory; relative paths begin "
                "here, in " +
                std::filesystem::current_path().string()});
}

TEST(ReadExactly, TellsThatTheFileEndsEarly) {
  const TempFolder folder;
  const std::string path = folder.write("file", "1234");
  const InputFile input = open_input(path);
  EXPECT_EQ(input.size_bytes, 4U);
  std::string out(4, ' ');
  read_exactly(input.descriptor.get(), path, 1, out.data(), 3);
  EXPECT_EQ(out, "234 ");
  expect_error([&] { read_exactly(input.descriptor.get(), path, 2, out.data(), 4); },
               ExitCode::StorageIo, {path + ": ends at byte 4, 2 bytes early"});
}

}  // namespace
}  // namespace sherd::files
