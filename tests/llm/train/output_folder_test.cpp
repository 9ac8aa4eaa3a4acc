// Trying where a run will write leaves nothing, and disturbs nobody.

#include "llm/train/output_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include "files/appended_file.h"
#include "sherd/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace llm::train {
namespace {

namespace fs = std::filesystem;
using sherd::test::TempFolder;

config::RunConfig logging_to(const TempFolder& folder, const std::string& log) {
  config::RunConfig config;
  config.train.output = folder.path() / "run";
  config.log.sink.front().path = log;
  fs::create_directory(config.train.output);
  return config;
}

TEST(OutputFolder, ATryLeavesNothing) {
  const TempFolder folder;
  try_output(logging_to(folder, ""));
  EXPECT_TRUE(fs::is_empty(folder.path() / "run"));
}

TEST(OutputFolder, ATryDoesNotTellThePipesReaderThatTheLogHasEnded) {
  const TempFolder folder;
  const std::string pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const sherd::files::FileDescriptor reader(
      ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  try_output(logging_to(folder, pipe));
  pollfd watched{reader.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&watched, 1, 0), 0) << "the reader was told of an end";
}

TEST(OutputFolder, TheConfigurationReplacesNoDevice) {
  const TempFolder folder;
  const config::RunConfig config = logging_to(folder, "");
  const fs::path path = folder.path() / "run/config.toml";
  fs::create_symlink("/dev/null", path);
  sherd::test::expect_error([&] { write_config(config); }, sherd::ExitCode::CannotWrite,
                            {"config.toml", "a device of that name is there"});
  fs::remove(path);
  write_config(config);
  EXPECT_TRUE(fs::is_regular_file(path));
}

TEST(OutputFolder, FollowsNoLink) {
  for (const char* name : {"config.toml", "log.jsonl", "plan.json", "summary.json"}) {
    const TempFolder folder;
    const config::RunConfig config = logging_to(folder, "");
    const fs::path target = folder.write("target", "mine");
    fs::create_symlink(target, folder.path() / "run" / name);
    sherd::test::expect_error([&] { try_output(config); }, sherd::ExitCode::CannotWrite,
                              {name, "it is a link, and a run does not follow links there"});
  }
}

TEST(OutputFolder, WhatAFullDiskDoesNotTakeIsTold) {
  std::string told;
  const auto tell = [&](const std::string& line) { told += line; };
  EXPECT_TRUE(if_there_is_room("a.json", tell, [] {}));
  EXPECT_EQ(told, "");
  EXPECT_FALSE(if_there_is_room(
      "a.json", tell, [] { throw sherd::NoRoom(sherd::ExitCode::StorageIo, "No space left"); }));
  EXPECT_EQ(told, "a.json could not be written: No space left");
}

TEST(OutputFolder, WhatIsSaidOfBadSamplesCommandsNoTerminal) {
  const TempFolder folder;
  std::string said;
  const std::vector<text::BadSample> bad = {{.source = "a.jsonl",
                                             .unit = "line",
                                             .place = "3",
                                             .byte = 7,
                                             .reason = "\u009b2J\u202E",
                                             .content = "\u009b"}};
  write_bad_samples(folder.path().string(), bad, [&](const std::string& line) { said = line; });
  EXPECT_NE(said.find("the first: a.jsonl: line 3, byte 7: \\u009b2J\\u202e"), std::string::npos)
      << said;
  EXPECT_TRUE(fs::exists(folder.path() / "bad_samples.jsonl"));
  write_bad_samples(folder.path().string(), {}, [](const std::string& /*line*/) {});
  EXPECT_FALSE(fs::exists(folder.path() / "bad_samples.jsonl"));
}

TEST(OutputFolder, IsOneThatAllRanksSee) {
  const TempFolder folder;
  const config::RunConfig config = logging_to(folder, "");
  sherd::test::run_ranks(3, [&](sherd::World world) { require_one_output(config, world); });
  EXPECT_TRUE(fs::is_empty(config.train.output));
}

TEST(OutputFolder, ThatIsAnotherOnOneRankIsNamedWithBothPlaces) {
  const TempFolder folder;
  const config::RunConfig config = logging_to(folder, "");
  config::RunConfig elsewhere = config;
  elsewhere.train.output = folder.path() / "of_another_host";
  fs::create_directory(elsewhere.train.output);
  sherd::test::run_ranks(3, [&](sherd::World world) {
    sherd::test::expect_error(
        [&] { require_one_output(world.rank() == 1 ? elsewhere : config, world); },
        sherd::ExitCode::RanksDisagree,
        {"all ranks must see the same train.output", "Rank 0 wrote into '" + config.train.output,
         "rank 1 cannot see that", "rank 1 looked in '" + elsewhere.train.output});
  });
  EXPECT_TRUE(fs::is_empty(config.train.output));
  EXPECT_TRUE(fs::is_empty(elsewhere.train.output));
}

}  // namespace
}  // namespace llm::train
