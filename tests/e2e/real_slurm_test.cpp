// Jobs that `sherd slurm` writes, under a real Slurm of two nodes.

#include "launch/slurm_job.h"
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
    if (!cluster_->missing().empty()) {
      GTEST_SKIP() << "SKIPPED: " << cluster_->missing();
    }
    ASSERT_EQ(cluster_->fault(), "");
  }

  /// Runs the program on the first node.
  static Ended run(int code, const Arguments& words) {
    Ended ended = Program(words, {cluster_->variable()}, cluster_->line()).finish();
    EXPECT_EQ(ended.code, code) << ended.out << ended.err;
    return ended;
  }
  /// Submits a run of so many steps on both nodes; the number of its job.
  std::string submit(const std::string& steps, const Arguments& flags = {},
                     const Arguments& options = {}) {
    Arguments words = train(folder_.path() / "run", steps);
    words[0] = "slurm";
    const Ended ended =
        run(0, words +
                   Arguments{"--nodes", "2", "--submit", "-o", (folder_.path() / "job").string(),
                             "--checkpoint.every", "1 steps"} +
                   cluster_->setup() + flags + Arguments{"--", "--output=" + out_file()} + options);
    const std::string mark = "Submitted batch job ";
    const auto at = ended.out.find(mark);
    EXPECT_NE(at, std::string::npos) << ended.out << ended.err;
    return at == std::string::npos ? "0"
                                   : std::to_string(std::stoi(ended.out.substr(at + mark.size())));
  }
  [[nodiscard]] std::string out_file() const { return (folder_.path() / "out").string(); }
  [[nodiscard]] bool printed(const std::string& text,
                             std::chrono::seconds limit = std::chrono::seconds(60)) const {
    return SlurmCluster::within(
        limit, [&] { return read_file(out_file()).find(text) != std::string::npos; });
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

// Rank 1 is done with its part of the stop long before rank 0, which still saves. To srun its 75 is
// a bad exit.
TEST_F(RealSlurm, ARankThatStopsFirstLeavesTheOthersTheirTime) {
  const std::string saved = (folder_.path() / "saved").string();
  const std::string rank = "[ $SLURM_PROCID = 0 ] && sleep 3 && echo $MASTER_PORT >> " + saved +
                           "; [ $SLURM_RESTART_COUNT ] && exit 0; exit 75";
  launch::SlurmJob job{.command = {"sh", "-c", rank},
                       .nodes = 2,
                       .options = {"--output=" + out_file()},
                       .checkpoints = folder_.path().string()};
  const fs::path file = folder_.write("job", slurm_job_file(job));
  const std::string number = cluster_->ask("sbatch --parsable " + file.string()).second;
  const std::string id = number.substr(0, number.find('\n'));
  EXPECT_TRUE(becomes(id, "COMPLETED")) << state_of(id) << read_file(out_file());
  const std::string ports = read_file(saved);
  EXPECT_EQ(std::count(ports.begin(), ports.end(), '\n'), 2) << ports;  // once, and once again
}

TEST_F(RealSlurm, ARunIsAskedToStopBeforeItsTimeLimitAndGoesOn) {
  const std::string job = submit("100000", {"--stop-before", "10"}, {"--time=1"});
  ASSERT_TRUE(printed("resumed from ", std::chrono::seconds(150)))
      << state_of(job) << read_file(out_file());
  EXPECT_THAT(cluster_->ask("scontrol show job " + job).second, HasSubstr("Restarts=1"));
}

TEST_F(RealSlurm, ANetworkBelowWhatIsAskedEndsTheJobBeforeTheRun) {
  const std::string job = submit("3", {"--bandwidth", "1e6"});
  EXPECT_TRUE(becomes(job, "FAILED")) << state_of(job) << read_file(out_file());
  EXPECT_THAT(read_file(out_file()), HasSubstr(" GB/s, below the 1e+06 asked for"));
  EXPECT_FALSE(fs::exists(folder_.path() / "run"));
  EXPECT_THAT(cluster_->ask("scontrol show job " + job).second, HasSubstr("ExitCode=1:0"));
  const std::string enough = submit("3", {"--bandwidth", "1e-6"});
  EXPECT_TRUE(becomes(enough, "COMPLETED")) << state_of(enough) << read_file(out_file());
}

TEST_F(RealSlurm, OptionsReachSbatchAsTheyAreGiven) {
  const std::string job = submit("1", {}, {"--comment=it's \"x#y\" & \\z", "--job-name=a b#c"});
  const std::string shown = cluster_->ask("scontrol show job " + job).second;
  EXPECT_THAT(shown, HasSubstr("Comment=it's \"x#y\" & \\z"));
  EXPECT_THAT(shown, HasSubstr("JobName=a b#c\n"));
}

// As before a time limit: asked to stop, the run saves and ends with 75, is queued again, and goes
// on.
TEST_F(RealSlurm, ARunThatIsAskedToStopGoesOnAfterARequeue) {
  const std::string job = submit("100000");
  ASSERT_TRUE(printed("step 2/")) << read_file(out_file());
  EXPECT_EQ(cluster_->ask("scancel --signal=TERM " + job).first, 0);
  ASSERT_TRUE(printed("resumed from ", std::chrono::seconds(120)))
      << state_of(job) << read_file(out_file());
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
    return run(0, Arguments{"sweep", file, "--slurm"} + cluster_->setup() +
                      Arguments{"--", "--output=" + out_file()})
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
  EXPECT_THAT(last, HasSubstr("run 2 of 2, 'two': already done"));
  EXPECT_THAT(last, HasSubstr("loss by epoch"));
}

}  // namespace
}  // namespace sherd::test
