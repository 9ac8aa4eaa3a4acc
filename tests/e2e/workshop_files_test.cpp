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
  for (const std::string sweep : {"bloom-560m", "bloom-560m-hosts"}) {
    const bool over_hosts = sweep.ends_with("-hosts");
    expect_code(
        0, Arguments{"sweep", "recipes/workshop/" + sweep + ".toml", "--train.output",
                     folder.path().string(), "--slurm", "--no-submit", "--cpus-per-rank", "8"} +
               (over_hosts ? Arguments{"--bandwidth", "1"} : Arguments{}) +
               Arguments{"--", "--time=4:00:00"});
  }
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    std::string job = read_file(entry.path());
    replace_all(job, folder.path().string(), "runs/workshop/bloom-560m");
    replace_all(job, SHERD_TEST_BINARY_DIR "/bin/sherd", "sherd");
    EXPECT_EQ(job, read_file(kWorkshop / "jobs" / entry.path().filename())) << entry;
    ++jobs;
  }
  EXPECT_EQ(jobs, 14U);
  EXPECT_EQ(listing(kWorkshop / "jobs").size(), jobs);
}

// Experiment 3 with offload, for GPUs.
TEST(WorkshopFiles, GpusRestOnTheirHost) {
  const TempFolder folder;
  expect_code(0, {"sweep", "recipes/workshop/bloom-560m-gpu.toml", "--train.output",
                  folder.path().string(), "--slurm", "--no-submit"});
  EXPECT_THAT(read_file(folder.path() / "3-full-shard-host.sbatch"),
              HasSubstr(" --device.kind cuda --memory.offload.optimizer host --parallel"));
  EXPECT_THAT(read_file(folder.path() / "3-full-shard-host-all.sbatch"),
              HasSubstr(" --memory.offload.gradients host --memory.offload.optimizer host "
                        "--memory.offload.parameters host "));
}

// A copy of the folder, whose environment file is edited as a student does.
class Experiments : public testing::Test {
 protected:
  Experiments() {
    fs::create_directory(copy().parent_path());
    for (const auto& recipe : fs::directory_iterator(kWorkshop.parent_path())) {
      if (recipe.is_regular_file()) {
        fs::copy(recipe, copy().parent_path());
      }
    }
    fs::copy(kWorkshop, copy());
  }
  [[nodiscard]] fs::path copy() const { return folder_.path() / "recipes" / "workshop"; }
  [[nodiscard]] fs::path output() const { return folder_.path() / "runs"; }
  void edit(const std::string& line, const std::string& by) const {
    std::string text = read_file(copy() / "workshop.env");
    ASSERT_NE(text.find(line), std::string::npos) << line;
    text.replace(text.find(line), line.size(), by);
    std::ofstream(copy() / "workshop.env") << text;
  }
  [[nodiscard]] Ended run(const std::string& flags) const {
    std::ofstream(copy() / "workshop.env", std::ios::app)
        << "OUTPUT_DIR=" << output().string() << '\n';
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
        "GRAD_ACC", "LEARNING_RATE", "WEIGHT_DECAY", "FP16", "BF16"}) {
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

// In addition to the recipe's own values.
TEST_F(Experiments, TakeAccumulationPrecisionAndTheFolderOfLogs) {
  edit("# LOG_DIR=logs ", "LOG_DIR=" + (copy() / "logs").string() + " ");
  edit("# BATCH_SIZE=1", "BATCH_SIZE=2");
  edit("# GRAD_ACC=4", "GRAD_ACC=6");
  edit("# FP16=False", "FP16=True");
  const Ended ended = run("--slurm --no-submit -- --time=10:00");
  ASSERT_EQ(ended.code, 0) << ended.err;
  const std::string job = read_file(output() / "4-four-ranks.sbatch");
  EXPECT_THAT(job, HasSubstr("#SBATCH --time=10:00\n#SBATCH --output=" +
                             (copy() / "logs").string() + "/%x_%j.out\n"));
  EXPECT_THAT(job, HasSubstr(" --train.global_batch 48 --train.micro_batch 2 "
                             "--precision.param_dtype float16\n"));
  EXPECT_TRUE(fs::is_directory(copy() / "logs"));
  // Experiments 1 to 3 have one global batch.
  for (const char* const run : {"1-baseline", "2-fsdp-one-rank", "3-full-shard", "3-no-shard"}) {
    EXPECT_THAT(read_file(output() / (std::string(run) + ".sbatch")),
                HasSubstr(" --train.global_batch 12 "));
  }
}

TEST_F(Experiments, SayWhatDoesNotGoTogether) {
  edit("# FP16=False", "FP16=True");
  edit("# BF16=True", "BF16=True");
  Ended ended = run("--slurm --no-submit");
  EXPECT_EQ(ended.code, 64);
  EXPECT_THAT(ended.err, HasSubstr("FP16 and BF16 of "));
  edit("\nFP16=True", "\nFP16=False");
  edit("# GRAD_ACC=4", "GRAD_ACC=4");
  ended = run("--slurm --no-submit");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.err, HasSubstr("GRAD_ACC in "));
  EXPECT_THAT(ended.err, HasSubstr("needs BATCH_SIZE"));
  edit("# BATCH_SIZE=1", "BATCH_SIZE=1");
  edit("\nGRAD_ACC=4", "\nGRAD_ACC=3");
  ended = run("--slurm --no-submit");
  EXPECT_EQ(ended.code, 64);
  EXPECT_THAT(ended.err, HasSubstr("must be even"));
}

}  // namespace
}  // namespace sherd::test
