// A mapped file that becomes shorter is a fault that is thrown, not a signal.

#include "files/mapped_file.h"

#include <csignal>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "files/file_descriptor.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace sherd::files {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

constexpr std::size_t kBytes = std::size_t{1} << 16;  // some pages

TEST(MappedFile, HasTheBytesOfTheFile) {
  const TempFolder folder;
  const std::string content(kBytes + 5, 'a');
  const MappedFile file(folder.write("file", content));
  EXPECT_EQ(file.bytes(), content);
  EXPECT_NO_THROW(require_mapped_files());
}

TEST(MappedFile, IsEmptyWhereThereIsNothingToMap) {
  const TempFolder folder;
  const fs::path nothing[] = {folder.path(), folder.path() / "none", folder.write("empty", ""),
                              "/dev/zero"};
  for (const fs::path& path : nothing) {
    EXPECT_TRUE(MappedFile(path).bytes().empty()) << path;
  }
}

TEST(MappedFile, ThatBecomesShorterReadsAsZerosAndIsNamed) {
  const TempFolder folder;
  const std::string path = folder.write("tokens", std::string(kBytes, 'a'));
  const MappedFile other(folder.write("other", std::string(kBytes, 'b')));
  {
    const MappedFile file(path);
    fs::resize_file(path, 1);
    EXPECT_EQ(file.bytes()[kBytes - 1], '\0');
    EXPECT_EQ(file.bytes()[kBytes / 2], '\0');
    EXPECT_EQ(file.bytes()[0], 'a');
    EXPECT_EQ(other.bytes()[kBytes - 1], 'b');
    test::expect_error([] { require_mapped_files(); }, ExitCode::StorageIo,
                       {path, "became shorter while it was read"});
  }
  EXPECT_NO_THROW(require_mapped_files());  // nobody reads it any more
  const MappedFile again(path);             // where the handler knew the other
  EXPECT_EQ(again.bytes(), "a");
  EXPECT_NO_THROW(require_mapped_files());
}

// Reads behind the end of a file that is no MappedFile.
void read_what_is_gone(const TempFolder& folder) {
  const std::string path = folder.write("unknown", std::string(kBytes, 'c'));
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto* data = static_cast<const volatile char*>(
      ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file.get(), 0));
  fs::resize_file(path, 0);
  static_cast<void>(data[kBytes - 1]);
}

TEST(MappedFileDeathTest, LeavesOtherFaultsToTheSystem) {
  const TempFolder folder;
  testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a process without our handler
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL);  // a sanitizer has one of its own
        const MappedFile known(folder.write("known", "text"));
        read_what_is_gone(folder);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST(MappedFileDeathTest, LeavesOtherFaultsToTheHandlerBefore) {
  const TempFolder folder;
  testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a process without our handler
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, [](int) { ::_exit(42); });
        const MappedFile known(folder.write("known", "text"));
        read_what_is_gone(folder);
      },
      testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace sherd::files
