#include "files/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "tests/files/odd_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace sherd::files {
namespace {

namespace fs = std::filesystem;
using test::content_of;
using test::expect_error;
using test::names_in;
using test::TempFolder;
using testing::ElementsAre;

TEST(WriteFile, ReplacesTheOldFileAndLeavesNothingElse) {
  const TempFolder folder;
  const std::string path = folder.path() / "a";
  write_file(path, "old");
  write_file(path, "new");
  EXPECT_EQ(content_of(path), "new");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
}

TEST(WriteFile, WhatCannotBeWrittenIsToldAndLeavesNothing) {
  const TempFolder folder;
  const std::string none = folder.path() / "none/a";
  expect_error([&] { write_file(none, "x"); }, ExitCode::CannotWrite,
               {none + ": cannot be created: No such file or directory"});
  const std::string sub = folder.path() / "folder";
  fs::create_directory(sub);
  expect_error([&] { write_file(sub, "x"); }, ExitCode::CannotWrite,
               {sub + ": cannot be created: Is a directory"});
  EXPECT_THAT(names_in(folder.path()), ElementsAre("folder"));
}

TEST(WriteFile, NeverReplacesWhatIsNoFile) {
  const TempFolder folder;
  const std::string pipe = test::make_pipe_file(folder.path() / "pipe");
  expect_error([&] { write_file(pipe, "x"); }, ExitCode::CannotWrite,
               {pipe + ": cannot be created: a pipe of that name is there"});
  EXPECT_TRUE(fs::is_fifo(pipe));
  const std::string device = folder.path() / "device";
  if (::mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {  // /dev/null; needs root
    expect_error([&] { write_file(device, "x"); }, ExitCode::CannotWrite,
                 {device + ": cannot be created: a device of that name is there"});
    EXPECT_TRUE(fs::is_character_file(device));
  }
  fs::create_symlink("/dev/null", folder.path() / "to-device");
  expect_error([&] { write_file(folder.path() / "to-device", "x"); }, ExitCode::CannotWrite,
               {"a device of that name is there"});
  EXPECT_TRUE(fs::is_symlink(folder.path() / "to-device"));
}

TEST(WriteFile, FollowsALinkAsAnyOtherProgramDoes) {
  const TempFolder folder;
  const TempFolder elsewhere;
  elsewhere.write("file", "old");
  fs::create_symlink(elsewhere.path() / "file", folder.path() / "link");
  write_file(folder.path() / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder.path() / "link"));
  EXPECT_EQ(content_of(elsewhere.path() / "file"), "new");
  EXPECT_THAT(names_in(elsewhere.path()), ElementsAre("file"));

  fs::create_symlink("gone", folder.path() / "broken");
  expect_error([&] { write_file(folder.path() / "broken", "x"); }, ExitCode::CannotWrite,
               {"it is a link that leads nowhere"});
}

TEST(NewFile, IsNotThereUntilItIsCommitted) {
  const TempFolder folder;
  const std::string path = folder.write("a", "old");
  {
    NewFile given_up(path);
    given_up.write(0, "half", 4);
    EXPECT_EQ(names_in(folder.path()).size(), 2U);
  }
  EXPECT_EQ(content_of(path), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
  NewFile file(path);
  file.reserve(6);
  file.write(3, "def", 3);
  file.write(0, "abc", 3);
  EXPECT_EQ(content_of(path), "old");
  file.commit();
  EXPECT_TRUE(file.committed());
  EXPECT_EQ(content_of(path), "abcdef");
}

}  // namespace
}  // namespace sherd::files
