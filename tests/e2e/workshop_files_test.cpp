// What lies in recipes/workshop beside the sweeps: its environment file, and job files.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const fs::path kWorkshop = SHERD_TEST_SOURCE_DIR "/recipes/workshop";

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

// The command that docs/guide/workshop.md gives writes them.
TEST(WorkshopFiles, JobsAreWhatSweepWrites) {
  const TempFolder folder;
  std::size_t jobs = 0;
  for (const char* const sweep : {"bloom-560m", "bloom-560m-hosts"}) {
    expect_code(0, {"sweep", "recipes/workshop/" + std::string(sweep) + ".toml", "--train.output",
                    folder.path().string(), "--slurm", "--no-submit", "--cpus-per-rank", "8", "--",
                    "--time=4:00:00"});
  }
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    std::string job = read_file(entry.path());
    replace_all(job, folder.path().string(), "runs/workshop/bloom-560m");
    replace_all(job, SHERD_TEST_BINARY_DIR "/bin/sherd", "sherd");
    EXPECT_EQ(job, read_file(kWorkshop / "jobs" / entry.path().filename())) << entry;
    ++jobs;
  }
  EXPECT_EQ(jobs, 13U);
  EXPECT_EQ(listing(kWorkshop / "jobs").size(), jobs);
}

// A copy of the folder, whose environment file is edited as a student does.
class Experiments : public testing::Test {
 protected:
  Experiments() { fs::copy(kWorkshop, copy()); }
  [[nodiscard]] fs::path copy() const { return folder_.path() / "workshop"; }
  [[nodiscard]] fs::path output() const { return folder_.path() / "runs"; }
  void edit(const std::string& line, const std::string& by) const {
    std::string text = read_file(copy() / "workshop.env");
    ASSERT_NE(text.find(line), std::string::npos) << line;
    text.replace(text.find(line), line.size(), by);
    std::ofstream(copy() / "workshop.env") << text;
  }
  [[nodiscard]] Ended run(const std::string& flags) const {
    edit("OUTPUT_DIR=runs/workshop/$EXPERIMENT_NAME", "OUTPUT_DIR=" + output().string());
    return Program({}, {"SHERD_BIN=" SHERD_TEST_BINARY_DIR "/bin"},
                   "exec " + (copy() / "experiments").string() + " " + flags)
        .finish();
  }

 private:
  TempFolder folder_;
};

TEST_F(Experiments, AreThoseOfTheSweepAsItIs) {
  const Ended ended = run("--slurm --no-submit");
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(
      read_file(output() / "4-four-ranks.sbatch"),
      HasSubstr("/small-bloom-run.toml --train.output " + (output() / "4-four-ranks").string() +
                " --parallel.strategy full_shard --train.global_batch 16\n"));
}

TEST_F(Experiments, TakeTheValuesOfTheEnvironmentFile) {
  edit("EXPERIMENT_NAME=small-bloom", "EXPERIMENT_NAME=bloom-560m");
  for (const char* const name :
       {"MODEL_NAME", "MAX_LENGTH", "TRAIN_SIZE", "EVAL_SIZE", "NUM_EPOCHS", "BATCH_SIZE",
        "LEARNING_RATE", "WEIGHT_DECAY", "BF16"}) {
    edit("# " + std::string(name) + "=", std::string(name) + "=");
  }
  const Ended ended = run("hosts --slurm --no-submit");
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(read_file(output() / "5-8-hosts-full-shard.sbatch"),
              HasSubstr("--model.path bigscience/bloom-560m --data.max_length 512 "
                        "'--data.train[0].limit' 250 '--data.eval[0].limit' 100 --train.epochs 5 "
                        "--train.micro_batch 1 --optim.lr 5e-5 --optim.weight_decay 0.01 "
                        "--precision.param_dtype bfloat16\n"));
}

}  // namespace
}  // namespace sherd::test
