// A log of one object a step, also over several starts of a run.

#include "llm/track/jsonl_log.h"

#include <fstream>
#include <iterator>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "tests/support/expect_error.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_folder.h"

namespace llm::track {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(JsonlLog, WritesEachRecordThrough) {
  const sherd::test::TempFolder folder;
  const std::filesystem::path path = folder.write("log.jsonl", "{\"step\": 1}\n");
  JsonlLog log(path, 0);  // a run that starts anew
  EXPECT_EQ(read(path), "");
  log.write(R"({"step":1})");
  EXPECT_EQ(read(path), "{\"step\":1}\n");
  log.write(R"({"step":2})");
  EXPECT_EQ(read(path), "{\"step\":1}\n{\"step\":2}\n");
}

TEST(JsonlLog, IsSyncedWhenAsked) {
  const sherd::test::TempFolder folder;
  JsonlLog log(folder.path() / "log.jsonl", 0);
  log.write("{}");
  EXPECT_NO_THROW(log.sync());
  EXPECT_NO_THROW(JsonlLog("/dev/null", 0).sync());
}

TEST(JsonlLog, OfAResumedRunHasEachStepOnce) {
  const sherd::test::TempFolder folder;
  const std::filesystem::path path =
      folder.write("log.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"st");
  JsonlLog log(path, 2);
  EXPECT_EQ(read(path), "{\"step\":1}\n{\"step\":2}\n");
  log.write(R"({"step":3,"again":true})");
  EXPECT_EQ(read(path), "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"again\":true}\n");
}

TEST(JsonlLog, OfAResumedRunMayBeMissing) {
  const sherd::test::TempFolder folder;
  JsonlLog log(folder.path() / "log.jsonl", 5);
  log.write(R"({"step":6})");
  EXPECT_EQ(read(folder.path() / "log.jsonl"), "{\"step\":6}\n");
}

TEST(JsonlLog, NeverReplacesADeviceOrAPipe) {
  const sherd::test::TempFolder folder;
  const std::filesystem::path device = folder.path() / "null";
  if (::mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) {  // /dev/null's twin
    std::filesystem::create_symlink("/dev/null", device);             // needs no root
  }
  for (const std::int64_t steps_done : {0, 5}) {
    JsonlLog log(device, steps_done);
    log.write(R"({"step":6})");
    EXPECT_TRUE(std::filesystem::is_character_file(device));
  }
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  const std::filesystem::path pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  sherd::test::expect_error([&] { JsonlLog(pipe, 5); }, sherd::ExitCode::CannotWrite,
                            {"a pipe that nobody reads", "log.sink[0].path"});
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

// The lines of a file, each a whole record.
std::vector<int> steps_in(const std::filesystem::path& path) {
  std::vector<int> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    steps.push_back(nlohmann::json::parse(line).at("step"));
  }
  return steps;
}

TEST(JsonlLog, OnAFullDiskWaitsForRoom) {
  const sherd::test::TempFolder folder;
  const sherd::test::SmallDisk disk(folder.path() / "disk");
  if (!disk.is_there()) {
    GTEST_SKIP() << sherd::test::SmallDisk::kWhyNot;
  }
  const std::string filling(12'000, 'x');
  std::ofstream(disk.path() / "other") << filling;
  std::vector<std::string> warnings;
  const auto path = disk.path() / "log.jsonl";
  JsonlLog log(path, 0, [&](const std::string& line) { warnings.push_back(line); });
  std::vector<int> all;
  for (int step = 1; step <= 200; ++step) {
    log.write(R"({"step":)" + std::to_string(step) + R"(,"more":"these are some bytes"})");
    all.push_back(step);
  }
  EXPECT_NO_THROW(log.sync());
  EXPECT_THAT(warnings, testing::ElementsAre(testing::AllOf(
                            testing::StartsWith("the log '" + path.string() + "' lacks records: "),
                            testing::HasSubstr("No space left on device"),
                            testing::HasSubstr("The run continues"))));
  const auto written = static_cast<std::int64_t>(steps_in(path).size());
  EXPECT_GT(written, 0);
  EXPECT_EQ(log.missing_records(), 200 - written);
  std::filesystem::remove(disk.path() / "other");
  log.write(R"({"step":201})");
  all.push_back(201);
  EXPECT_EQ(log.missing_records(), 0);
  EXPECT_EQ(steps_in(path), all);
}

TEST(JsonlLog, ThatCannotBeWrittenKeepsAFewMebibytesInMemory) {
  std::vector<std::string> warnings;
  JsonlLog log("/dev/full", 0, [&](const std::string& line) { warnings.push_back(line); });
  const std::string record(1 << 20, 'x');
  for (int i = 0; i < 10; ++i) {
    log.write(record);
  }
  EXPECT_EQ(log.missing_records(), 10);  // some wait, others are lost
  EXPECT_THAT(warnings, testing::ElementsAre(testing::HasSubstr("lacks records"),
                                             testing::HasSubstr("loses records")));
}

TEST(JsonlLog, ThatWasRemovedEndsTheRun) {
  const sherd::test::TempFolder folder;
  const std::filesystem::path path = folder.path() / "log.jsonl";
  JsonlLog log(path, 0);
  log.write(R"({"step":1})");
  std::filesystem::remove(path);
  sherd::test::expect_error([&] { log.write(R"({"step":2})"); }, sherd::ExitCode::StorageIo,
                            {"writing the log '" + path.string(), "was removed"});
}

TEST(JsonlLog, ThatCannotBeWrittenIsNamed) {
  const sherd::test::TempFolder folder;
  const std::string path = folder.path() / "no" / "log.jsonl";
  sherd::test::expect_error([&] { JsonlLog(path, 0); }, sherd::ExitCode::CannotWrite,
                            {"cannot write the log '" + path, "No such file", "log.jsonl"});
}

}  // namespace
}  // namespace llm::track
