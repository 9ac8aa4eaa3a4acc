// What a sweep remembers of its runs.

#include "llm/runs/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sherd/error.h"
#include "tests/support/temp_folder.h"

namespace llm::runs {
namespace {

using sherd::test::TempFolder;
using testing::HasSubstr;

class Sweep : public testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path output() const { return folder_.path() / "sweep"; }
  void end(const config::SweepRun& run, int code) {
    SweepRecords(output()).add({run, code, 1.5});
    std::filesystem::create_directories(output() / run.name);
    folder_.write("sweep/" + run.name + "/summary.json", "{}");
  }
  const config::SweepRun run_{"a", 2, {{"optim.lr", "0.1"}, {"train.epochs", "2"}}};

 private:
  TempFolder folder_;
};

TEST_F(Sweep, RemembersARunThatHasEndedWell) {
  EXPECT_FALSE(SweepRecords(output()).is_done(run_));
  end(run_, 0);
  end({"b", 1, {}}, 0);
  EXPECT_TRUE(SweepRecords(output()).is_done(run_));
  std::filesystem::remove_all(output() / "a");
  EXPECT_FALSE(SweepRecords(output()).is_done(run_));
}

TEST_F(Sweep, MakesARunThatFailedAgain) {
  end(run_, 79);
  EXPECT_FALSE(SweepRecords(output()).is_done(run_));
}

TEST_F(Sweep, RefusesOtherSettingsUnderTheSameName) {
  end(run_, 0);
  config::SweepRun other = run_;
  other.set[0].second = "0.2";
  try {
    static_cast<void>(SweepRecords(output()).is_done(other));
    FAIL();
  } catch (const sherd::Error& error) {
    EXPECT_EQ(error.code(), sherd::ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("'a' was made with other settings"));
  }
}

TEST_F(Sweep, RefusesADamagedRecord) {
  end(run_, 0);
  std::ofstream(output() / "sweep.json") << R"({"runs": [{"name": 5}]})";
  try {
    static_cast<void>(SweepRecords(output()));
    FAIL();
  } catch (const sherd::Error& error) {
    EXPECT_EQ(error.code(), sherd::ExitCode::BadData);
    EXPECT_THAT(error.what(), HasSubstr("sweep.json: not the record of a sweep"));
  }
}

}  // namespace
}  // namespace llm::runs
