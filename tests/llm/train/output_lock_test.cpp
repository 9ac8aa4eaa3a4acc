// One run at a time in an output folder, and no trace of one that did nothing.

#include "llm/train/output_lock.h"

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include <unistd.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::train {
namespace {

namespace fs = std::filesystem;
using sherd::ExitCode;
using sherd::test::expect_error;

TEST(OutputLock, KeepsOthersOutAndTellsWhoHoldsIt) {
  const sherd::test::TempFolder folder;
  const fs::path output = folder.path() / "run";
  {
    const OutputLock lock(output);
    EXPECT_EQ(lock.warning(), "");
    expect_error([&] { const OutputLock second(output); }, ExitCode::CannotWrite,
                 {"'" + output.string() + "' is locked by another run",
                  "process " + std::to_string(::getpid()) + " on host ", "train.output"});
    std::ofstream(output / "file") << "kept";
  }
  EXPECT_TRUE(fs::exists(output / "file"));
  EXPECT_FALSE(fs::exists(output / "lock"));
  EXPECT_NO_THROW(const OutputLock third(output));
}

// The other run is on a host whose death only the file server notices.
TEST(OutputLock, WaitsForTheLeaseOfAnotherHost) {
  const sherd::test::TempFolder folder;
  auto first = std::make_unique<OutputLock>(folder.path());
  std::ofstream(folder.path() / "lock") << "process 1 on host elsewhere since long ago\n";
  std::string said;
  std::thread server([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(3000));  // longer than for a run here
    first.reset();
  });
  OutputLock::OtherHosts hosts;
  hosts.shares = [](int) { return true; };
  hosts.say = [&](const std::string& line) { said += line; };
  EXPECT_NO_THROW(const OutputLock second(folder.path(), hosts));
  server.join();
  EXPECT_EQ(said,
            "the output folder is locked by process 1 on host elsewhere since long ago: if that "
            "host is dead, its file server releases the lock within 100 s; waiting");
}

TEST(OutputLock, RemovesFoldersThatItMadeInVain) {
  const sherd::test::TempFolder folder;
  { const OutputLock lock(folder.path() / "a/b/c"); }
  EXPECT_FALSE(fs::exists(folder.path() / "a"));
  { const OutputLock lock(folder.path()); }
  EXPECT_TRUE(fs::exists(folder.path()));
}

TEST(OutputLock, IsTakenOverAFileThatWasLeftBehind) {
  const sherd::test::TempFolder folder;
  folder.write("lock", "process 1 on host gone since long ago\nand more");
  const OutputLock lock(folder.path());
  std::ifstream file(folder.path() / "lock");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text.find("process " + std::to_string(::getpid())), 0U);
  EXPECT_EQ(text.find("gone"), std::string::npos);
}

TEST(OutputLock, NoticesThatTheFolderIsGone) {
  const sherd::test::TempFolder folder;
  const OutputLock lock(folder.path() / "run");
  EXPECT_NO_THROW(lock.check_folder_is_there());
  fs::rename(folder.path() / "run", folder.path() / "moved");
  expect_error([&] { lock.check_folder_is_there(); }, ExitCode::StorageIo,
               {"was removed or replaced"});
  fs::create_directory(folder.path() / "run");
  expect_error([&] { lock.check_folder_is_there(); }, ExitCode::StorageIo, {});
}

TEST(OutputLock, FollowsNoLink) {
  const sherd::test::TempFolder folder;
  const fs::path victim = folder.write("victim", "keep me");
  fs::create_symlink(victim, folder.path() / "lock");
  expect_error([&] { const OutputLock lock(folder.path()); }, ExitCode::CannotWrite,
               {"cannot write to the output folder", "'lock' is a link"});
  EXPECT_EQ(fs::file_size(victim), 7U);
}

}  // namespace
}  // namespace llm::train
