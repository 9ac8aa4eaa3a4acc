#include "files/appended_file.h"

#include <cerrno>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "files/system_text.h"
#include "sherd/error.h"
#include "tests/files/odd_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_folder.h"

namespace sherd::files {
namespace {

namespace fs = std::filesystem;
using test::content_of;
using test::expect_error;
using test::TempFolder;

TEST(AppendedFile, KeepsWhatIsThere) {
  const TempFolder folder;
  const fs::path path = folder.write("log", "one\n");
  AppendedFile file(path);
  EXPECT_TRUE(file.is_regular());
  file.append("two\n");
  file.sync();
  EXPECT_EQ(content_of(path), "one\ntwo\n");
}

TEST(AppendedFile, MayBeADevice) {
  AppendedFile file("/dev/null");
  EXPECT_FALSE(file.is_regular());
  file.append("x");
  file.sync();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(AppendedFile, MayBeAPipeThatIsRead) {
  const TempFolder folder;
  const std::string pipe = test::make_pipe_file(folder.path() / "pipe");
  expect_error([&] { AppendedFile{pipe}; }, ExitCode::CannotWrite,
               {pipe + ": cannot be written to: it is a pipe that nobody reads"});
  const FileDescriptor reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  AppendedFile file(pipe);
  file.append("line\n");
  std::string got(16, ' ');
  EXPECT_EQ(::read(reader.get(), got.data(), got.size()), 5);
  EXPECT_EQ(got.substr(0, 5), "line\n");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(AppendedFile, WaitsForASlowReader) {
  const TempFolder folder;
  const std::string pipe = test::make_pipe_file(folder.path() / "pipe");
  const FileDescriptor reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  AppendedFile file(pipe);
  const std::string much(1 << 20, 'x');  // more than a pipe holds
  std::thread writer([&] { file.append(much); });
  ::fcntl(reader.get(), F_SETFL, 0);
  std::string got(much.size(), ' ');
  for (size_t done = 0; done < got.size();) {
    const ssize_t count = ::read(reader.get(), got.data() + done, got.size() - done);
    ASSERT_GT(count, 0);
    done += static_cast<size_t>(count);
  }
  writer.join();
  EXPECT_EQ(got, much);
}

TEST(AppendedFile, ThatCannotBeWrittenToIsTold) {
  const TempFolder folder;
  expect_error([&] { AppendedFile{folder.path().string()}; }, ExitCode::CannotWrite,
               {"cannot be written to: Is a directory"});
  expect_error([&] { AppendedFile{"/dev/full"}.append("x"); }, ExitCode::StorageIo,
               {"/dev/full: writing failed: No space left on device"});
  EXPECT_THROW(AppendedFile{"/dev/full"}.append("x"), NoRoom);
}

TEST(AppendedFile, OnAFullDiskHasNoPartOfWhatFailed) {
  const TempFolder folder;
  const test::SmallDisk disk(folder.path() / "disk");
  if (!disk.is_there()) {
    GTEST_SKIP() << test::SmallDisk::kWhyNot;
  }
  const fs::path path = disk.path() / "log";
  AppendedFile file(path);
  file.append("one\n");
  EXPECT_THROW(file.append(std::string(1 << 20, 'x')), NoRoom);
  EXPECT_EQ(content_of(path), "one\n");
  file.append("two\n");
  EXPECT_EQ(content_of(path), "one\ntwo\n");
}

TEST(AppendedFile, ThatWasRemovedIsTold) {
  const TempFolder folder;
  const std::string path = folder.path() / "log";
  AppendedFile file(path);
  file.append("one\n");
  fs::remove(path);
  expect_error([&] { file.append("two\n"); }, ExitCode::StorageIo,
               {path + ": was removed while it was written to"});
}

TEST(NoRoom, IsWhatDiskAndQuotaLack) {
  for (const int full : {ENOSPC, EDQUOT}) {
    EXPECT_THROW(throw_errno(ExitCode::CannotWrite, "file", full), NoRoom);
  }
  try {
    throw_errno(ExitCode::StorageIo, "file", EIO);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::StorageIo);
    EXPECT_STREQ(error.what(), "file: Input/output error");
    EXPECT_EQ(dynamic_cast<const NoRoom*>(&error), nullptr);
  }
}

}  // namespace
}  // namespace sherd::files
