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
        "\nmodule load gcc\n",
        " train recipes/llama-3-8b.toml --optim.lr 1e-5 --device.kind cuda\n",
        "scontrol requeue $SLURM_JOB_ID"}) {
    EXPECT_THAT(ended.out, HasSubstr(line));
  }
}

TEST(Slurm, WritesWhatTheGuideShows) {
  const TempFolder folder;
  const std::string recipe = folder.write(
      "run.toml", read_file(SHERD_TEST_SOURCE_DIR "/recipes/stories260k-squad-32.toml"));
  std::string job =
      expect_code(0, {"slurm", recipe, "--nodes", "2", "--ranks-per-node", "8", "--cpus-per-rank",
                      "8", "--setup", "module load gcc", "--", "--time=4:00:00"})
          .out;
  const auto shorten = [&](const std::string& word, const std::string& by) {
    ASSERT_NE(job.find(word), std::string::npos) << word;
    job.replace(job.find(word), word.size(), by);
  };
  shorten(SHERD_TEST_BINARY_DIR "/bin/sherd", "sherd");
  shorten(recipe, "run.toml");
  EXPECT_THAT(read_file(SHERD_TEST_SOURCE_DIR "/docs/guide/launching.md"),
              HasSubstr("```bash\n" + job + "```\n"));
}

TEST(Slurm, AJobWithGpusComputesOnThem) {
  const Arguments job = kJob + Arguments{"--gpus-per-node", "8"};
  EXPECT_THAT(expect_code(0, job).out, HasSubstr(" --device.kind cuda"));
  EXPECT_THAT(expect_code(0, kJob + Arguments{"--ranks-per-node", "8"}).out,
              testing::Not(HasSubstr("device.kind")));
  EXPECT_THAT(expect_code(64, job + Arguments{"--device.kind", "cpu"}).err,
              HasSubstr("--gpus-per-node asks for GPUs that device.kind = \"cpu\" leaves idle"));
}

// Each start is stopped when it has saved something new.
TEST(Slurm, AJobThatOverwritesDoesSoInItsFirstStartAlone) {
  const TempFolder folder;
  const auto command = [&](const char* name, const std::string& lines) {
    fs::permissions(folder.write(name, "#!/bin/bash\n" + lines), fs::perms::owner_all);
  };
  command("srun", R"(shift 3
: > out  # that of the start before tells of a checkpoint
"$@" > out 2>&1 & pid=$!
while kill -0 $pid 2> /dev/null && ! grep -q '^checkpoint ' out; do sleep 0.05; done
kill -TERM $pid
wait $pid; code=$?
cat out
exit $code
)");
  command("scontrol", "echo \"$@\" >> asked\n");
  const fs::path job = folder.path() / "job.sbatch";
  Arguments words = train(folder.path() / "run", "100000") +
                    Arguments{"--checkpoint.every", "2 steps", "--checkpoint.resume",
                              "overwrite",          "-o",      job.string()};
  words[0] = "slurm";
  expect_code(0, words);
  const auto start = [&](int restarts) {
    const Ended ended = Program({},
                                {"SLURM_JOB_ID=7", "SLURM_CPUS_PER_TASK=1",
                                 "SLURM_RESTART_COUNT=" + std::to_string(restarts),
                                 "PATH=" + folder.path().string() + ":/usr/bin:/bin"},
                                "cd " + folder.path().string() + " && exec bash job.sbatch")
                            .finish();
    EXPECT_EQ(ended.code, 75) << ended.out << ended.err;
    EXPECT_THAT(ended.err, testing::Not(HasSubstr("stopped twice")));
    return ended.out;
  };
  EXPECT_THAT(start(0), testing::Not(HasSubstr("resumed from")));
  EXPECT_THAT(start(1), HasSubstr("resumed from"));
  EXPECT_THAT(start(2), HasSubstr("resumed from"));
  EXPECT_EQ(read_file(folder.path() / "asked"), "requeue 7\nrequeue 7\nrequeue 7\n");
}

// sbatch ends at a quote that it finds no end of.
TEST(Slurm, NamesTheJobAsSlurmTakesIt) {
  const TempFolder folder;
  const fs::path recipe =
      folder.write("bob's run.toml", read_file(SHERD_TEST_SOURCE_DIR "/tests/e2e/base.toml"));
  const Ended ended =
      expect_code(0, Arguments{"slurm", recipe.string(), "--model.path", kModel, "--data.train",
                               kQuestions, "--train.output", (folder.path() / "run").string()});
  EXPECT_THAT(ended.out, HasSubstr("#SBATCH --job-name=bob_s_run\n"));
  EXPECT_THAT(ended.out, HasSubstr("newest() { ls " + (folder.path() / "run").string() +
                                   "/checkpoints/step-*[0-9]/manifest.json "));
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
  EXPECT_THAT(ended.err, HasSubstr("sbatch is not installed here. Submit " + file.string()));
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
  refused(kJob + Arguments{"--", "gpu"}, "'gpu' after -- is not an option of sbatch");
  refused({"slurm", "/no/such/run.toml"}, "/no/such/run.toml");
  refused({"slurm"}, "recipe is required");
}

}  // namespace
}  // namespace sherd::test
