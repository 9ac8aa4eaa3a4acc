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
    SweepRecords(output()).add({run, config_, code, 1.5});
    std::filesystem::create_directories(output() / run.name);
    folder_.write("sweep/" + run.name + "/summary.json", "{}");
  }
  static config::RunConfig config_of_run() {
    config::RunConfig config;
    config.data.train = {{.path = "train.json"}};
    config.optim.lr = 0.1;
    return config;
  }
  const config::RunConfig config_ = config_of_run();
  const config::SweepRun run_{"a", 2, 1, {{"optim.lr", "0.1"}, {"train.epochs", "2"}}};

  TempFolder folder_;
};

TEST_F(Sweep, RemembersARunThatHasEndedWell) {
  EXPECT_FALSE(SweepRecords(output()).is_done(run_, config_));
  end(run_, 0);
  end({"b", 1, 1, {}}, 0);
  EXPECT_TRUE(SweepRecords(output()).is_done(run_, config_));
  std::filesystem::remove_all(output() / "a");
  EXPECT_FALSE(SweepRecords(output()).is_done(run_, config_));
}

// What a job's exit code was is not known here: it has left a summary, or not.
TEST_F(Sweep, RemembersTheJobOfARun) {
  SweepRecords(output()).add({run_, config_, std::nullopt, 0, "12"});
  EXPECT_FALSE(SweepRecords(output()).is_done(run_, config_));
  EXPECT_EQ(SweepRecords(output()).job_of(run_), "12");
  EXPECT_EQ(SweepRecords(output()).job_of({"b", 1, 1, {}}), "");
  std::filesystem::create_directories(output() / "a");
  folder_.write("sweep/a/summary.json", "{}");
  EXPECT_TRUE(SweepRecords(output()).is_done(run_, config_));
  for (const std::string ended : {"stopped", "failed"}) {
    folder_.write("sweep/a/summary.json", R"({"ended": ")" + ended + "\"}");
    EXPECT_FALSE(SweepRecords(output()).is_done(run_, config_)) << ended;
  }
}

TEST_F(Sweep, KnowsAJobThatFailed) {
  SweepRecords(output()).add({run_, config_, std::nullopt, 0, "12"});
  const auto failure = [&](const config::RunConfig& config) {
    return SweepRecords(output()).failure_of_job(run_, config);
  };
  EXPECT_EQ(failure(config_), std::nullopt);
  std::ofstream(SweepRecords(output()).code_file_of(run_)) << "0\n";
  EXPECT_EQ(failure(config_), std::nullopt);
  std::ofstream(SweepRecords(output()).code_file_of(run_)) << "79\n";
  EXPECT_EQ(failure(config_), 79);
  config::RunConfig other = config_;
  other.optim.lr = 0.5;
  EXPECT_EQ(failure(other), std::nullopt);
}

TEST_F(Sweep, MakesARunThatFailedAgain) {
  end(run_, 79);
  EXPECT_FALSE(SweepRecords(output()).is_done(run_, config_));
}

TEST_F(Sweep, RefusesOtherSettingsUnderTheSameName) {
  end(run_, 0);
  config::SweepRun other = run_;
  other.ranks = 4;
  config::RunConfig recipe = config_;
  recipe.optim.lr = 0.5;  // of the recipe, which was edited
  try {
    static_cast<void>(SweepRecords(output()).is_done(other, recipe));
    FAIL();
  } catch (const sherd::Error& error) {
    EXPECT_EQ(error.code(), sherd::ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("'a' was made with other settings: ranks was 2, is 4, "
                                        "optim.lr was 0.1, is 0.5. Give the former "
                                        "settings, delete its folder "));
  }
}

// It would resume with them.
TEST_F(Sweep, RefusesOtherSettingsOfARunThatHasLeftACheckpoint) {
  SweepRecords(output()).add({run_, config_, std::nullopt, 0});  // begun, and then stopped
  config::RunConfig other = config_;
  other.optim.lr = 0.5;
  EXPECT_FALSE(SweepRecords(output()).is_done(run_, other));
  const std::filesystem::path checkpoint = output() / run_.name / "checkpoints/step-00000002";
  std::filesystem::create_directories(checkpoint);
  EXPECT_FALSE(SweepRecords(output()).is_done(run_, other));
  std::ofstream(checkpoint / "manifest.json") << "{}";
  EXPECT_FALSE(SweepRecords(output()).is_done(run_, config_));
  try {
    static_cast<void>(SweepRecords(output()).is_done(run_, other));
    FAIL();
  } catch (const sherd::Error& error) {
    EXPECT_EQ(error.code(), sherd::ExitCode::Usage);
    EXPECT_THAT(error.what(), HasSubstr("no run was started: the run 'a' was begun with other "
                                        "settings: optim.lr was 0.1, is 0.5."));
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
