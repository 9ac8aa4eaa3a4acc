// A run whose log has no room.

#include <thread>

#include "tests/e2e/training.h"
#include "tests/support/evaluations.h"
#include "tests/support/small_disk.h"

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(FullLog, OfADeviceChangesNoNumbers) {
  const TempFolder folder;
  const fs::path output = folder.path() / "run";
  const fs::path plain = folder.path() / "plain";
  expect_code(0, on_ranks(2, train(plain, "4")));
  const Ended ended = expect_code(
      0, on_ranks(2, train(output, "4") + Arguments{"--log.sink[0].path", "/dev/full"}));
  EXPECT_EQ(count_of(ended.err, "the log '/dev/full' lacks records"), 1U) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("No space left on device"));
  EXPECT_THAT(ended.out, Not(HasSubstr("lacks records")));
  EXPECT_EQ(exported_weights(output), exported_weights(plain));
  for (const std::string verb : {"compare", "watch"}) {
    EXPECT_THAT(expect_code(66, {verb, output.string()}).err,
                HasSubstr("has no log: /dev/full is not a file, and cannot be read back"));
  }
}

class FullDisk : public testing::Test {
 protected:
  void SetUp() override {
    if (!disk_.is_there()) {
      GTEST_SKIP() << SmallDisk::kWhyNot;
    }
    std::ofstream(filling()) << std::string(12'000, 'x');
  }

  [[nodiscard]] fs::path filling() const { return disk_.path() / "other"; }
  [[nodiscard]] fs::path log() const { return disk_.path() / "log.jsonl"; }
  [[nodiscard]] fs::path output() const { return folder_.path() / "run"; }
  [[nodiscard]] Arguments logged_there(const std::string& steps) const {
    return train(output(), steps) + Arguments{"--log.sink[0].path", log().string()};
  }

 private:
  TempFolder folder_;
  SmallDisk disk_{folder_.path() / "disk"};
};

TEST_F(FullDisk, IsToldAndWhatItLacksIsCounted) {
  const Ended ended = expect_code(0, logged_there("40"));
  EXPECT_EQ(count_of(ended.err, "lacks records"), 1U) << ended.err;
  const std::size_t written = read_log(log()).size();  // each a whole line
  EXPECT_GT(written, 2U);
  EXPECT_LT(written, 40U);
  // A beginning, 40 steps, a checkpoint and an end were to be written, of which one more is there.
  const auto lost = summary(output()).at("lost_records").get<std::size_t>();
  EXPECT_EQ(lost, 43 - written - 1);
  EXPECT_THAT(ended.out, HasSubstr("; " + std::to_string(lost) +
                                   " records not in the log because the disk was full\n"));
}

TEST_F(FullDisk, IsWrittenOnWhenThereIsRoom) {
  Program run(logged_there("4000") + Arguments{"--log.every_steps", "1"});
  run.wait_for("step 60/");
  fs::remove(filling());
  run.wait_for("step 65/");
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish().code, 75);
  const std::vector<double> losses = [&] {
    std::vector<double> found;
    for (const auto& record : read_log(log())) {
      EXPECT_EQ(record.at("step"), found.size() + 1);
      found.push_back(record.at("loss").get<double>());
    }
    return found;
  }();
  EXPECT_GT(losses.size(), 28U);
}

// Before weights are loaded.
TEST_F(FullDisk, WhereNoLogCanBeMadeRefusesTheRun) {
  const fs::path nowhere = output() / "no" / "log.jsonl";
  const Ended ended =
      expect_code(73, train(output()) + Arguments{"--log.sink[0].path", nowhere.string()});
  EXPECT_THAT(ended.err, AllOf(HasSubstr("cannot write the log"), HasSubstr("log.sink[0].path")));
  EXPECT_THAT(ended.out, Not(HasSubstr("model: ")));
}

}  // namespace
}  // namespace sherd::test
