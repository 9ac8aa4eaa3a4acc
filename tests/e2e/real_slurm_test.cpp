// Jobs that `sherd slurm` writes, under a real Slurm of two nodes.

#include "tests/e2e/training.h"
#include "tests/support/slurm_cluster.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

class RealSlurm : public testing::Test {
 protected:
  static void SetUpTestSuite() { cluster_ = std::make_unique<SlurmCluster>(); }
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override {
    if (!cluster_->fault().empty()) {
      GTEST_SKIP() << "SKIPPED: " << cluster_->fault();
    }
  }

  /// Submits a run of so many steps on both nodes; the number of its job.
  std::string submit(const std::string& steps) {
    Arguments words = train(folder_.path() / "run", steps);
    words[0] = "slurm";
    const Ended ended = expect_code(
        0,
        words + Arguments{"--nodes", "2", "--submit", "-o", (folder_.path() / "job").string(),
                          // the nodes' names lead nowhere: both are this host
                          "--setup", "export MASTER_ADDR=127.0.0.1", "--checkpoint.every",
                          "1 steps", "--", "--output=" + out_file()},
        {cluster_->variable()});
    const std::string mark = "Submitted batch job ";
    const auto at = ended.out.find(mark);
    EXPECT_NE(at, std::string::npos) << ended.out << ended.err;
    return at == std::string::npos ? "0"
                                   : std::to_string(std::stoi(ended.out.substr(at + mark.size())));
  }
  [[nodiscard]] std::string out_file() const { return (folder_.path() / "out").string(); }
  [[nodiscard]] bool printed(const std::string& text, int times = 1) const {
    return SlurmCluster::within(std::chrono::seconds(60), [&] {
      const std::string all = read_file(out_file());
      int found = 0;
      for (auto at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) {
        ++found;
      }
      return found >= times;
    });
  }
  static std::string state_of(const std::string& job) {
    const std::string text = cluster_->ask("scontrol show job " + job).second;
    const auto at = text.find("JobState=") + 9;
    return text.substr(at, text.find(' ', at) - at);
  }
  static bool becomes(const std::string& job, const std::string& state) {
    return SlurmCluster::within(std::chrono::seconds(60), [&] { return state_of(job) == state; });
  }
  /// Processes that have the folder of this test among their arguments.
  [[nodiscard]] std::string processes() const {
    return cluster_->ask("pgrep -f -- '--train.output[ ]" + folder_.path().string() + "'").second;
  }

  static inline std::unique_ptr<SlurmCluster> cluster_;
  TempFolder folder_;
};

TEST_F(RealSlurm, TrainsOnBothNodes) {
  const std::string job = submit("3");
  EXPECT_TRUE(becomes(job, "COMPLETED")) << state_of(job) << read_file(out_file());
  EXPECT_EQ(column(folder_.path() / "run", "loss").size(), 3U);
  EXPECT_THAT(read_file(out_file()), HasSubstr("2 ranks"));
}

// As before a time limit: asked to stop, the run saves and ends with 75, is queued again, and goes
// on.
TEST_F(RealSlurm, ARunThatIsAskedToStopGoesOnAfterARequeue) {
  const std::string job = submit("100000");
  ASSERT_TRUE(printed("step 2/")) << read_file(out_file());
  EXPECT_EQ(cluster_->ask("scancel --signal=TERM " + job).first, 0);
  ASSERT_TRUE(printed("resumed from ")) << state_of(job) << read_file(out_file());
  EXPECT_EQ(state_of(job), "RUNNING");
  EXPECT_THAT(cluster_->ask("scontrol show job " + job).second, HasSubstr("Restarts=1"));
  EXPECT_EQ(cluster_->ask("scancel " + job).first, 0);
  EXPECT_TRUE(becomes(job, "CANCELLED")) << state_of(job);
}

TEST_F(RealSlurm, ACancelledJobLeavesNoProcess) {
  const std::string job = submit("100000");
  ASSERT_TRUE(printed("step 2/")) << read_file(out_file());
  EXPECT_NE(processes(), "");
  EXPECT_EQ(cluster_->ask("scancel " + job).first, 0);
  EXPECT_TRUE(SlurmCluster::within(std::chrono::seconds(40), [&] { return processes().empty(); }))
      << processes();
}

TEST_F(RealSlurm, ASweepIsAJobForEachRun) {
  const fs::path output = folder_.path() / "sweep";
  const std::string file =
      folder_
          .write("sweep.toml", "recipe = \"recipes/stories260k-squad-32.toml\"\noutput = \"" +
                                   output.string() + R"("
[[run]]
name = "one"
set = { train.max_steps = 2 }
[[run]]
name = "two"
ranks = 2
hosts = 2
set = { train.max_steps = 2 }
)")
          .string();
  const auto sweep = [&] {
    return expect_code(0,
                       {"sweep", file, "--slurm", "--setup", "export MASTER_ADDR=127.0.0.1", "--",
                        "--output=" + out_file()},
                       {cluster_->variable()})
        .out;
  };
  const std::string first = sweep();
  EXPECT_THAT(first, HasSubstr("run 1 of 2, 'one': job "));
  EXPECT_THAT(first, HasSubstr("run 2 of 2, 'two': job "));
  EXPECT_THAT(sweep(), HasSubstr(" is "));  // PENDING, RUNNING or COMPLETING: left alone
  EXPECT_TRUE(SlurmCluster::within(std::chrono::seconds(60), [&] {
    return fs::exists(output / "one/summary.json") && fs::exists(output / "two/summary.json") &&
           cluster_->ask("squeue -h").second.empty();
  })) << read_file(out_file());
  const std::string last = sweep();
  EXPECT_THAT(last, HasSubstr("run 2 of 2, 'two': done before"));
  EXPECT_THAT(last, HasSubstr("loss by epoch"));
}

}  // namespace
}  // namespace sherd::test
