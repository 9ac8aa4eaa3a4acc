// `sherd slurm`: the job file of a run.

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using testing::HasSubstr;

const Arguments kJob = {"slurm", "recipes/llama-3-8b.toml", "--nodes", "2"};

TEST(Slurm, PrintsTheJobOfARun) {
  const Ended ended = expect_code(
      0, kJob + Arguments{"--gpus-per-node", "8", "--setup", "module load gcc", "--optim.lr",
                          "1e-5", "--", "--time=1:00:00", "--partition=gpu"});
  EXPECT_TRUE(ended.out.starts_with("#!/bin/bash\n#SBATCH --nodes=2\n"));
  for (const char* const line :
       {"#SBATCH --ntasks-per-node=8\n", "#SBATCH --gpus-per-node=8\n",
        "#SBATCH --job-name=llama-3-8b\n", "#SBATCH --time=1:00:00\n#SBATCH --partition=gpu\n",
        "\nmodule load gcc\n", " train recipes/llama-3-8b.toml --optim.lr 1e-5\n",
        "scontrol requeue $SLURM_JOB_ID"}) {
    EXPECT_THAT(ended.out, HasSubstr(line));
  }
}

TEST(Slurm, WritesAFileThatTheShellTakes) {
  const TempFolder folder;
  const fs::path file = folder.path() / "job.sbatch";
  EXPECT_THAT(expect_code(0, kJob + Arguments{"-o", file.string()}).out, HasSubstr("job.sbatch"));
  EXPECT_EQ(std::system(("bash -n " + file.string()).c_str()), 0);
}

TEST(Slurm, SaysWhereThereIsNone) {
  const TempFolder folder;
  const fs::path file = folder.path() / "job.sbatch";
  const Ended ended = expect_code(69, kJob + Arguments{"-o", file.string(), "--submit"},
                                  {"PATH=" + folder.path().string()});
  EXPECT_THAT(ended.err, HasSubstr("there is no sbatch here. Submit " + file.string()));
}

TEST(Slurm, RefusesWhatCannotBe) {
  const auto refused = [](const Arguments& words, const std::string& why) {
    EXPECT_THAT(expect_code(64, words).err, HasSubstr(why));
  };
  refused({"slurm", "recipes/llama-3-8b.toml", "--nodes", "0"}, "--nodes: Value 0 not in range");
  refused(kJob + Arguments{"--gpus-per-node", "0"}, "--gpus-per-node");
  refused(kJob + Arguments{"--bandwidth", "0"}, "--bandwidth");
  refused(kJob + Arguments{"--gpus-per-node", "2", "--ranks-per-node", "2"}, "excludes");
  refused(kJob + Arguments{"--optim.rate", "1"}, "optim.rate");
  refused(kJob + Arguments{"--", "gpu"}, "'gpu' after -- is no option of sbatch");
  refused({"slurm", "/no/such/run.toml"}, "/no/such/run.toml");
  refused({"slurm"}, "recipe is required");
}

}  // namespace
}  // namespace sherd::test
