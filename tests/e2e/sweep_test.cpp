// `sherd sweep`: runs one after the other, started again, failing, stopped.

#include <csignal>

#include "tests/e2e/training.h"

namespace sherd::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class Sweep : public testing::Test {
 protected:
  [[nodiscard]] fs::path output() const { return folder_.path() / "sweep"; }
  [[nodiscard]] Arguments sweep(const Arguments& more, const std::string& steps = "3") const {
    Arguments words = train(output(), steps) + more;
    words[0] = "sweep";
    return words;
  }
  [[nodiscard]] std::string file(const std::string& runs) const {
    return folder_
        .write("sweep.toml", "recipe = \"recipes/stories260k-squad-32.toml\"\noutput = \"" +
                                 output().string() + "\"\n" + runs)
        .string();
  }

 private:
  TempFolder folder_;
};

TEST_F(Sweep, RunsEachSettingAndPassesOverWhatIsDone) {
  const Arguments words = sweep({"--parallel.strategy", "no_shard,full_shard", "-n", "1,2"});
  const Ended first = expect_code(0, words);
  EXPECT_THAT(first.out, HasSubstr("run 4 of 4, 'full_shard-n2': 2 ranks"));
  EXPECT_THAT(first.out, HasSubstr("loss by epoch"));
  EXPECT_THAT(first.out, Not(HasSubstr("not comparable")));
  fs::remove_all(output() / "no_shard-n2");
  const std::string page = (output() / "page.html").string();
  const Ended second = expect_code(0, words + Arguments{"--json", "--html", page});
  EXPECT_THAT(second.err, HasSubstr("run 1 of 4, 'no_shard-n1': already done"));
  EXPECT_THAT(second.err, HasSubstr("run 2 of 4, 'no_shard-n2': 2 ranks"));
  const json found = json::parse(second.out);
  EXPECT_EQ(found.at("runs").size(), 4);
  EXPECT_EQ(found.at("comparable"), true);
  // The rows of the page are in the sweep's order.
  const std::string written = read_file(page);
  EXPECT_LT(written.find("<td>no_shard-n2</td>"), written.find("<td>full_shard-n1</td>"));
  // One rank under FSDP is the run without it, in its bits.
  EXPECT_EQ(column(output() / "no_shard-n1", "loss"), column(output() / "full_shard-n1", "loss"));
}

const std::string kOnTwoHosts = "[[run]]\nname = \"wide\"\nranks = 4\nhosts = 2\n";

TEST_F(Sweep, SeveralHostsNeedABatchSystemOrALauncher) {
  const std::string sweep = file(kOnTwoHosts);
  EXPECT_THAT(expect_code(64, {"sweep", sweep}).err,
              HasSubstr("run 'wide' needs 2 hosts: give --slurm for a batch system, or "
                        "--launcher with a command that starts `sherd launch` on each host"));
  EXPECT_THAT(expect_code(64, {"sweep", sweep, "--setup", "true"}).err, HasSubstr("--slurm"));
  EXPECT_THAT(expect_code(64, {"sweep", sweep, "--no-submit"}).err, HasSubstr("--slurm"));
  EXPECT_THAT(expect_code(64, {"sweep", sweep, "--slurm", "--launcher", "true"}).err,
              HasSubstr("--slurm excludes --launcher"));
  const TempFolder nothing;
  EXPECT_THAT(expect_code(69, {"sweep", sweep, "--slurm"}, {"PATH=" + nothing.path().string()}).err,
              HasSubstr("sbatch is not installed here. Submit "));
}

/// A sweep of one run on two hosts, and a launcher that starts nothing.
class SweepByALauncher : public Sweep {
 protected:
  [[nodiscard]] Arguments call(const std::string& launcher) const {
    const fs::path file_of_it = commands_.write("launcher", "#!/bin/bash\n" + launcher + "\n");
    fs::permissions(file_of_it, fs::perms::owner_all);
    return {"sweep", file(kOnTwoHosts), "--launcher", file_of_it.string() + " --rate '1 gbit'"};
  }
  [[nodiscard]] fs::path given() const { return commands_.path() / "given"; }

 private:
  TempFolder commands_;
};

// What it is given is for `sherd launch` on each host, in an environment that is no rank's.
TEST_F(SweepByALauncher, GivesItWhatEachHostStarts) {
  const std::string to = " " + given().string();
  const Ended ended = expect_code(1, call("echo \"$*\" >" + to + "; env >>" + to + "; exit 76"));
  EXPECT_THAT(ended.out, HasSubstr("run 1 of 1, 'wide': 4 ranks on 2 hosts"));
  EXPECT_THAT(ended.out, HasSubstr("failed: 'wide' (76)"));
  const std::string words = read_file(given());
  EXPECT_TRUE(
      words.starts_with("--rate 1 gbit --nnodes 2 -n 2 train recipes/stories260k-squad-32"
                        ".toml --train.output " +
                        (output() / "wide").string() + "\n"))
      << words;
  EXPECT_THAT(words, HasSubstr("SHERD_BIN=" SHERD_TEST_BINARY_DIR "/bin\n"));
  EXPECT_THAT(words, Not(HasSubstr("WORLD_SIZE=")));
}

TEST_F(SweepByALauncher, PassesARequestToStopOn) {
  Program program(call("trap 'exit 75' TERM; echo begun; while :; do sleep 0.1; done"));
  program.wait_for("begun");
  program.signal(SIGTERM);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 75) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("'wide': stopped; the same command resumes"));
}

TEST_F(Sweep, WritesJobsWithoutSubmittingThem) {
  const TempFolder nothing;
  const Ended ended =
      expect_code(0, {"sweep", file(kOnTwoHosts), "--slurm", "--no-submit", "--", "--time=1:00:00"},
                  {"PATH=" + nothing.path().string()});
  EXPECT_EQ(ended.out,
            "run 1 of 1, 'wide': job file " + (output() / "wide.sbatch").string() + "\n");
  const std::string job = read_file(output() / "wide.sbatch");
  EXPECT_THAT(job, HasSubstr("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n"));
  EXPECT_THAT(job, HasSubstr("#SBATCH --time=1:00:00\n"));
  EXPECT_FALSE(fs::exists(output() / "sweep.json"));
}

TEST_F(Sweep, TakesSettingsForAllRunsOfAFile) {
  const std::string sweep = file(
      "[[run]]\nname = \"a\"\n[[run]]\nname = \"b\"\nset = { optim.lr = "
      "1e-4 }\n");
  const fs::path other = output().parent_path() / "other";
  expect_code(0, {"sweep", sweep, "--train.max_steps=2", "--train.output", other.string()});
  for (const char* const name : {"a", "b"}) {
    EXPECT_EQ(json::parse(read_file(other / name / "summary.json")).at("steps"), 2);
  }
  EXPECT_FALSE(fs::exists(output()));
  EXPECT_THAT(expect_code(64, {"sweep", sweep, "--optim.lr", "1e-3"}).err,
              HasSubstr("run 'b': --optim.lr"));
}

// Told once, not by each run in its turn.
TEST_F(Sweep, TriesRanksOfAnAdapter) {
  expect_code(0, sweep({"--adapter.kind", "lora", "--adapter.rank", "2,4", "--optim.lr", "1e-2",
                        "--checkpoint.export", "end"},
                       "2"));
  const auto rank_in = [&](const char* run) {
    return json::parse(read_file(output() / run / "export/adapter_config.json")).at("r");
  };
  EXPECT_EQ(rank_in("rank=2"), 2);
  EXPECT_EQ(rank_in("rank=4"), 4);
  EXPECT_NE(column(output() / "rank=2", "loss").back(), column(output() / "rank=4", "loss").back());
}

TEST_F(Sweep, LooksForFilesBeforeTheFirstRun) {
  const std::string sweep = file(R"(
[[run]]
name = "sound"
[[run]]
name = "one"
set = { model.path = "tests/data/none" }
[[run]]
name = "two"
set = { model.path = "tests/data/none", data.train = "tests/data/none-*.json" }
)");
  const Ended ended = expect_code(66, {"sweep", sweep});
  EXPECT_THAT(ended.err, HasSubstr("no run was started because files are missing"));
  EXPECT_THAT(ended.err, HasSubstr("\n  data.train[0].path = \"tests/data/none-*.json\": there is "
                                   "no such file (of 'two')"));
  EXPECT_THAT(ended.err, HasSubstr("\n  model.path = \"tests/data/none\": there is no such folder "
                                   "(of 'one', 'two')"));
  EXPECT_EQ(ended.out, "");
  EXPECT_FALSE(fs::exists(output() / "sound"));
}

// What may be a name on a hub is asked for there, once.
TEST_F(Sweep, LooksForNamesOnAHubBeforeTheFirstRun) {
  const TempFolder cache;
  const Ended ended = expect_code(
      66, sweep({"--parallel.strategy", "no_shard,full_shard", "--data.eval", "nobody/nothing"}),
      {"HF_HUB_OFFLINE=1", "HF_HOME=" + cache.path().string()});
  EXPECT_THAT(ended.err, HasSubstr("data.eval = \"nobody/nothing\": there is no such file, and as "
                                   "the name of a data set on a hub"));
  EXPECT_EQ(ended.err.find("nobody/nothing\":"), ended.err.rfind("nobody/nothing\":"));
  EXPECT_FALSE(fs::exists(output() / "no_shard"));
}

/// A sweep of one run on a Slurm of which only the commands are there.
class SweepOfJobs : public Sweep {
 protected:
  SweepOfJobs() {
    command("sbatch", "echo \"$@\" >> " + in("submitted") + "; echo 7");
    command("squeue", "exit 0");
  }
  void command(const std::string& name, const std::string& line) const {
    fs::permissions(commands_.write(name, "#!/bin/sh\n" + line + "\n"), fs::perms::owner_all);
  }
  [[nodiscard]] std::string in(const std::string& name) const {
    return (commands_.path() / name).string();
  }
  [[nodiscard]] Ended call(int code) const {
    return expect_code(code, {"sweep", sweep_, "--slurm"},
                       {"PATH=" + commands_.path().string() + ":/usr/bin:/bin"});
  }
  [[nodiscard]] std::int64_t submissions() const {
    const std::string all = read_file(in("submitted"));
    return std::count(all.begin(), all.end(), '\n');
  }

 private:
  TempFolder commands_;
  std::string sweep_ = file("[[run]]\nname = \"one\"\nset = { train.max_steps = 3 }\n");
};

TEST_F(SweepOfJobs, IsNotSubmittedTwiceWhereSlurmDoesNotAnswer) {
  EXPECT_THAT(call(0).out, HasSubstr("run 1 of 1, 'one': job 7"));
  command("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1");
  EXPECT_THAT(call(69).err, HasSubstr("the state of job 7 is unknown because squeue failed: Unable "
                                      "to contact slurm controller. Nothing was submitted"));
  command("squeue", "echo '6 PENDING'; echo '7 RUNNING'");
  EXPECT_THAT(call(0).out, HasSubstr("run 1 of 1, 'one': job 7 is RUNNING"));
  EXPECT_EQ(submissions(), 1);
  command("squeue", "echo '71 RUNNING'");
  EXPECT_THAT(call(0).out, HasSubstr("'one': job 7 after 7, which has ended"));
  EXPECT_EQ(submissions(), 2);
}

TEST_F(SweepOfJobs, ARunThatFailedIsSaidAndNotSubmittedAgain) {
  static_cast<void>(call(0));
  const std::string code_file = (output() / "one.code").string();
  EXPECT_THAT(read_file(output() / "one.sbatch"), HasSubstr("\necho $code > " + code_file + "\n"));
  std::ofstream(code_file) << "79\n";
  const Ended ended = call(1);
  EXPECT_THAT(ended.out, HasSubstr("run 1 of 1, 'one': job 7 failed with exit code 79, and is not "
                                   "submitted again: change its settings, or delete " +
                                   code_file));
  EXPECT_THAT(ended.out, HasSubstr("failed: 'one' (79)"));
  EXPECT_EQ(submissions(), 1);
  fs::remove(code_file);
  static_cast<void>(call(0));
  EXPECT_EQ(submissions(), 2);
}

TEST_F(Sweep, RecordsAFailureAndGoesOn) {
  const std::string sweep = file(R"(
[[run]]
name = "bad"
set = { optim.lr = 1e30, train.max_steps = 3 }
[[run]]
name = "good"
set = { train.max_steps = 3 }
)");
  const Ended ended = expect_code(1, {"sweep", sweep});
  EXPECT_THAT(ended.out,
              HasSubstr("'bad': failed with exit code 79; continuing with the next run"));
  EXPECT_THAT(ended.out, HasSubstr("failed: 'bad' (79)"));
  EXPECT_TRUE(fs::exists(output() / "good/summary.json"));
  const json record = json::parse(read_file(output() / "sweep.json"));
  EXPECT_EQ(record.at("runs").at(0).at("exit_code"), 79);
  EXPECT_EQ(record.at("runs").at(1).at("exit_code"), 0);
}

TEST_F(Sweep, StopsWithTheRunThatIsStoppedAndGoesOn) {
  const Arguments words = sweep({"--optim.lr", "1e-4,1e-3"}, "2000");
  Program program(words);
  program.wait_for("step 5/");
  program.signal(SIGTERM);
  const Ended ended = program.finish();
  EXPECT_EQ(ended.code, 75) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("'lr=1e-4': stopped; the same command resumes"));
  EXPECT_FALSE(fs::exists(output() / "lr=1e-3"));
  const auto left = listing(output());
  const Ended other = expect_code(64, words + Arguments{"--optim.eps", "1e-7"});
  EXPECT_THAT(other.err, HasSubstr("no run was started: the run 'lr=1e-4' was begun with other "
                                   "settings: optim.eps was 1e-08, is 1e-07."));
  EXPECT_EQ(listing(output()), left);
  Program again(words);
  again.wait_for("resumed from ");
  again.signal(SIGTERM);
  EXPECT_EQ(again.finish().code, 75);
}

TEST_F(Sweep, RefusesWhatCannotBeBeforeTheFirstRun) {
  const auto refused = [](const Arguments& words, const std::string& why) {
    EXPECT_THAT(expect_code(64, words).err, HasSubstr(why));
  };
  refused({"sweep", file("[[run]]\nname = \"a\"\nset = { optim.lr = -1 }\n")},
          "run 'a': --optim.lr -1");
  refused({"sweep", file("[[run]]\nname = \"a\"\n"), "-n", "2"}, "-n is for recipes");
  refused({"sweep", file("[[run]]\nname = \"a\"\n"), "--checkpoint.resume", "overwrite"},
          "checkpoint.resume = \"overwrite\" does not work in a sweep");
  refused({"sweep", "/no/such/file.toml"}, "/no/such/file.toml");
  refused({"sweep", kModel}, "is a folder");
  refused(sweep({"-n", "0"}), "--ranks");
  EXPECT_FALSE(fs::exists(output()));
  const Ended ended = expect_code(73, sweep({"--html", "/no/folder/page.html"}));
  EXPECT_THAT(ended.err, HasSubstr("/no/folder/page.html: cannot be created: No such file or "
                                   "directory"));
  EXPECT_THAT(listing(output()), testing::IsEmpty());
}

}  // namespace
}  // namespace sherd::test
