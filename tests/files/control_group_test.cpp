#include "files/control_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace sherd::files {
namespace {

using testing::ElementsAre;

class ControlGroups : public testing::Test {
 protected:
  [[nodiscard]] std::vector<std::string> of(const std::string& controller,
                                            const std::string& own) const {
    std::vector<std::string> names;
    const ControlGroupPlaces places{folder_.path(), folder_.write("own", own)};
    for (const auto& group : control_groups(controller, places)) {
      names.push_back(group.lexically_relative(folder_.path()).string());
    }
    return names;
  }
  void make(const std::string& path) const {
    std::filesystem::create_directories(folder_.path() / path);
  }

 private:
  test::TempFolder folder_;
};

// A job's limit stands at the group of the job, above that of its processes.
TEST_F(ControlGroups, AreAllFromTheProcessToTheRoot) {
  make("slurm/job_7/step_0");
  EXPECT_THAT(of("memory", "0::/slurm/job_7/step_0\n"),
              ElementsAre("slurm/job_7/step_0", "slurm/job_7", "slurm", "."));
  EXPECT_THAT(of("memory", "0::/\n"), ElementsAre("."));
  EXPECT_THAT(of("memory", ""), ElementsAre("."));
}

TEST_F(ControlGroups, OfVersion1AreThoseOfTheController) {
  make("memory/job");
  make("cpu/other");
  const std::string own = "9:cpu,cpuacct:/other\n4:memory:/job\n0::/unified\n";
  EXPECT_THAT(of("memory", own), ElementsAre("memory/job", "memory"));
  EXPECT_THAT(of("cpu", own), ElementsAre("cpu/other", "cpu"));
}

TEST_F(ControlGroups, OfAContainerAreWhatItSees) {
  make("memory");
  EXPECT_THAT(of("memory", "4:memory:/docker/abc\n"), ElementsAre("memory"));
  EXPECT_THAT(of("memory", "0::/../elsewhere\n"), ElementsAre("."));
}

}  // namespace
}  // namespace sherd::files
