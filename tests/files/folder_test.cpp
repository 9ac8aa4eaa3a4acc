#include "files/folder.h"

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include "tests/files/odd_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/without_system_call.h"

namespace sherd::files {
namespace {

namespace fs = std::filesystem;
using test::content_of;
using test::expect_error;
using test::names_in;
using test::TempFolder;
using testing::ElementsAre;

// A folder `name` with one file.
std::string folder_with(const TempFolder& parent, const std::string& name,
                        const std::string& content) {
  fs::create_directory(parent.path() / name);
  parent.write(name + "/file", content);
  return parent.path() / name;
}

TEST(ReplaceFolder, TakesANameThatIsFree) {
  const TempFolder folder;
  const std::string from = folder_with(folder, "new.tmp", "new");
  replace_folder(from, folder.path() / "new");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("new"));
  EXPECT_EQ(content_of(folder.path() / "new/file"), "new");
}

TEST(ReplaceFolder, TakesThePlaceOfAnOlderOne) {
  const TempFolder folder;
  const std::string to = folder_with(folder, "it", "old");
  replace_folder(folder_with(folder, "it.tmp", "new"), to);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("it"));
  EXPECT_EQ(content_of(folder.path() / "it/file"), "new");
}

TEST(ReplaceFolder, NeedsNoSystemCallThatASandboxMayRefuse) {
  for (const int error : {ENOSYS, EINVAL, EPERM}) {
    const TempFolder folder;
    const auto replace = [&](const std::string& content) {
      return test::without_system_call(SYS_renameat2, error, [&] {
        replace_folder(folder_with(folder, "it.tmp", content), folder.path() / "it");
        return 0;
      });
    };
    for (const char* content : {"first", "second"}) {  // the name is free, and then taken
      ASSERT_EQ(replace(content), 0) << error << " " << content;
      EXPECT_THAT(names_in(folder.path()), ElementsAre("it"));
      EXPECT_EQ(content_of(folder.path() / "it/file"), content);
    }
  }
}

TEST(MakeFolder, SaysWhyItCannot) {
  const TempFolder folder;
  make_folder(folder.path() / "a/b");
  make_folder(folder.path() / "a/b");
  const std::string file = folder.write("file", "");
  expect_error([&] { make_folder(file); }, ExitCode::CannotWrite,
               {"cannot create the folder '" + file});
  expect_error([&] { make_folder(file + "/in"); }, ExitCode::CannotWrite, {"Not a directory"});
}

TEST(RemoveFolder, MayFindNothing) {
  const TempFolder folder;
  remove_folder(folder_with(folder, "it", "x"));
  remove_folder(folder.path() / "it");
  remove_folder(folder.write("file", "") / "it");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("file"));
}

TEST(CheckLink, MayNotLeadOutOfItsFolder) {
  const TempFolder folder;
  const std::string model = folder_with(folder, "model", "x");
  folder.write("secret", "s");
  check_link(model, model + "/file");
  check_link(model, model + "/none");
  fs::create_symlink("file", model + "/inside");
  check_link(model, model + "/inside");
  fs::create_symlink("../secret", model + "/outside");
  expect_error([&] { check_link(model, model + "/outside"); }, ExitCode::BadData,
               {model + "/outside: links to " + fs::canonical(folder.path() / "secret").string(),
                "outside of its folder"});
}

TEST(CheckLink, MayLeadIntoTheBlobsOfAHubCache) {
  const TempFolder cache;
  fs::create_directories(cache.path() / "models--x/snapshots/main");
  fs::create_directories(cache.path() / "models--x/blobs");
  cache.write("models--x/blobs/1234", "{}");
  cache.write("models--x/refs", "main");
  const std::string snapshot = cache.path() / "models--x/snapshots/main";
  fs::create_symlink("../../blobs/1234", snapshot + "/good");
  check_link(snapshot, snapshot + "/good");
  fs::create_symlink("../../refs", snapshot + "/bad");
  expect_error([&] { check_link(snapshot, snapshot + "/bad"); }, ExitCode::BadData, {"links to"});
}

}  // namespace
}  // namespace sherd::files
