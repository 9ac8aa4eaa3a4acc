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
  const Ended second = expect_code(0, words + Arguments{"--json"});
  EXPECT_THAT(second.err, HasSubstr("run 1 of 4, 'no_shard-n1': done before"));
  EXPECT_THAT(second.err, HasSubstr("run 2 of 4, 'no_shard-n2': 2 ranks"));
  const json found = json::parse(second.out);
  EXPECT_EQ(found.at("runs").size(), 4);
  EXPECT_EQ(found.at("comparable"), true);
  // One rank under FSDP is the run without it, in its bits.
  EXPECT_EQ(column(output() / "no_shard-n1", "loss"), column(output() / "full_shard-n1", "loss"));
}

TEST_F(Sweep, SeveralHostsNeedABatchSystem) {
  const std::string sweep = file("[[run]]\nname = \"wide\"\nranks = 2\nhosts = 2\n");
  EXPECT_THAT(expect_code(64, {"sweep", sweep}).err,
              HasSubstr("run 'wide' is over 2 hosts, which only a batch system gives: --slurm"));
  EXPECT_THAT(expect_code(64, {"sweep", sweep, "--setup", "true"}).err, HasSubstr("--slurm"));
  const TempFolder nothing;
  EXPECT_THAT(expect_code(69, {"sweep", sweep, "--slurm"}, {"PATH=" + nothing.path().string()}).err,
              HasSubstr("there is no sbatch here. Submit "));
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
  EXPECT_THAT(call(69).err, HasSubstr("what became of job 7 is not known, since squeue failed: "
                                      "Unable to contact slurm controller. Nothing was submitted"));
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
  EXPECT_THAT(ended.out, HasSubstr("'bad': failed with exit code 79; the next one begins"));
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
  EXPECT_THAT(ended.out, HasSubstr("'lr=1e-4': stopped; the same command goes on"));
  EXPECT_FALSE(fs::exists(output() / "lr=1e-3"));
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
  refused({"sweep", file("[[run]]\nname = \"a\"\n"), "--optim.lr", "1e-5"},
          "settings and -n go with a recipe");
  refused({"sweep", "/no/such/file.toml"}, "/no/such/file.toml");
  refused({"sweep", kModel}, "is a folder");
  refused(sweep({"-n", "0"}), "--ranks");
  EXPECT_FALSE(fs::exists(output()));
}

}  // namespace
}  // namespace sherd::test
