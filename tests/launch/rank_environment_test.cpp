#include "launch/rank_environment.h"

#include <map>
#include <ostream>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/error.h"

namespace sherd::launch {
namespace {

using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

RankEnvironment detect_in(const Environment& variables) {
  return detect([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

/// rank/world local_rank/local_world launcher address:port, then what is true of it.
std::string summary(const RankEnvironment& e) {
  std::string text = std::to_string(e.rank) + "/" + std::to_string(e.world_size) + " " +
                     std::to_string(e.local_rank) + "/" + std::to_string(e.local_world_size) + " " +
                     std::string(to_text(e.launcher));
  if (e.master_address) {
    text += " " + *e.master_address + ":" + std::to_string(e.master_port.value_or(0));
  }
  text += e.all_local ? " local" : "";
  text += e.agent_store ? " agent" : "";
  text += e.master_fd ? " master_fd=" + std::to_string(*e.master_fd) : "";
  text += e.supervisor_fd ? " supervisor_fd=" + std::to_string(*e.supervisor_fd) : "";
  return text;
}

struct Case {
  std::string name;
  Environment variables;
  std::string expected;
};

Environment with(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) {
    base[name] = value;
  }
  return base;
}

const Environment kTorchrun = {{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "host7"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Environment kSlurm = {{"SLURM_JOB_ID", "42"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_PROCID", "3"},
                            {"SLURM_NTASKS", "4"},
                            {"SLURM_STEP_NUM_TASKS", "4"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NODEID", "1"},
                            {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                            {"SLURM_STEP_NODELIST", "gpu[08-09]"},
                            {"SLURM_NODELIST", "gpu[01-09]"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "prterun-a-17@1"}};
const Environment kOpenMpiLocal =
    with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});

std::vector<Case> cases() {
  return {
      {"nothing", {}, "0/1 0/1 alone local"},
      {"empty variables count as unset", {{"RANK", ""}, {"WORLD_SIZE", ""}}, "0/1 0/1 alone local"},
      {"leftover address alone",
       {{"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}},
       "0/1 0/1 alone local"},
      {"sherd launch",
       {{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "4000"},
        {"SHERD_SUPERVISOR_FD", "7"},
        {"SHERD_MASTER_FD", "5"}},
       "0/2 0/2 sherd launch 127.0.0.1:4000 local master_fd=5 supervisor_fd=7"},
      {"torchrun on one host serves the store", kTorchrun,
       "1/2 1/2 torchrun host7:29500 local agent"},
      {"torchrun on one host without agent store meets on loopback",
       with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}),
       "1/2 1/2 torchrun 127.0.0.1:29500 local"},
      {"torchrun on two hosts", with(kTorchrun, {{"WORLD_SIZE", "4"}, {"RANK", "3"}}),
       "3/4 1/2 torchrun host7:29500 agent"},
      {"a world of one needs no address",
       {{"RANK", "0"}, {"WORLD_SIZE", "1"}},
       "0/1 0/1 torchrun local"},
      {"by hand on loopback",
       {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "5"}},
       "1/3 1/3 torchrun 127.0.0.1:5 local"},
      {"by hand on hosts",
       {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "5"}},
       "1/3 0/1 torchrun 10.0.0.7:5"},
      {"two torchruns on one host",
       with(kTorchrun, {{"WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "::1"},
                        {"TORCHELASTIC_USE_AGENT_STORE", "False"}}),
       "1/4 1/2 torchrun 127.0.0.1:29500 local"},
      {"RANK goes before Slurm", with(kSlurm, kTorchrun),
       "1/2 1/2 torchrun host7:29500 local agent"},
      {"Slurm step on two hosts", kSlurm, "3/4 1/2 Slurm gpu08:29301"},
      {"another step, another port", with(kSlurm, {{"SLURM_STEP_ID", "1"}}),
       "3/4 1/2 Slurm gpu08:11682"},
      {"Slurm with an address of one's own",
       with(kSlurm, {{"MASTER_ADDR", "10.1.1.1"}, {"MASTER_PORT", "777"}}),
       "3/4 1/2 Slurm 10.1.1.1:777"},
      {"Slurm step on one host",
       with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4"},
                     {"SLURM_NODEID", "0"},
                     {"SLURM_LOCALID", "3"},
                     {"SLURM_STEP_NODELIST", "gpu08"}}),
       "3/4 3/4 Slurm 127.0.0.1:29301 local"},
      {"Slurm step that tells little, one host",
       {{"SLURM_STEP_ID", "0"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_JOB_ID", "42"},
        {"SLURM_NODELIST", "a"}},
       "1/2 1/2 Slurm 127.0.0.1:29301 local"},
      {"counts of the job are not those of the step",
       with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", ""}, {"SLURM_TASKS_PER_NODE", "8(x9)"}}),
       "3/4 0/1 Slurm gpu08:29301"},
      {"Slurm step of one task",
       {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
       "0/1 0/1 Slurm local"},
      {"a batch script is no rank",
       {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "42"}},
       "0/1 0/1 alone local"},
      {"a batch step by number", with(kSlurm, {{"SLURM_STEP_ID", "4294967291"}}),
       "0/1 0/1 alone local"},
      {"an interactive step", with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}, {"PMIX_RANK", "0"}}),
       "0/1 0/1 alone local"},
      {"a batch step by name", with(kSlurm, {{"SLURM_STEP_ID", "batch"}}), "0/1 0/1 alone local"},
      {"mpirun inside a batch step",
       with(kOpenMpiLocal,
            {{"SLURM_STEP_ID", "4294967291"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}),
       "2/4 2/4 Open MPI 127.0.0.1:23481 local"},
      {"Slurm goes before Open MPI", with(kSlurm, kOpenMpi), "3/4 1/2 Slurm gpu08:29301"},
      {"the step of Open MPI's daemons is passed over",
       with(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}), kOpenMpiLocal),
       "2/4 2/4 Open MPI 127.0.0.1:23481 local"},
      {"Open MPI on one host", kOpenMpiLocal, "2/4 2/4 Open MPI 127.0.0.1:23481 local"},
      {"Open MPI on two hosts", with(kOpenMpi, {{"MASTER_ADDR", "h1"}, {"MASTER_PORT", "9"}}),
       "2/4 0/2 Open MPI h1:9"},
      {"Open MPI goes before PMI", with(kOpenMpiLocal, {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}),
       "2/4 2/4 Open MPI 127.0.0.1:23481 local"},
      {"MPICH on one host",
       {{"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"MPI_LOCALRANKID", "1"},
        {"MPI_LOCALNRANKS", "2"},
        {"MASTER_PORT", "9"}},
       "1/2 1/2 PMI 127.0.0.1:9 local"},
      {"PMI on two hosts",
       {{"PMI_RANK", "1"},
        {"PMI_SIZE", "2"},
        {"PMI_LOCAL_RANK", "0"},
        {"PMI_LOCAL_SIZE", "1"},
        {"MASTER_ADDR", "h1"},
        {"MASTER_PORT", "9"}},
       "1/2 0/1 PMI h1:9"},
      {"PMIx with a size",
       {{"PMIX_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"PMI_JOBID", "j"}},
       "1/2 1/2 PMI 127.0.0.1:26029 local"},
  };
}

TEST(RankEnvironment, IsReadFromEveryLauncher) {
  for (const Case& row : cases()) {
    SCOPED_TRACE(row.name);
    try {
      EXPECT_EQ(summary(detect_in(row.variables)), row.expected);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

struct Fault {
  Environment variables;
  ExitCode code;
  std::string message;
};

std::vector<Fault> faults() {
  const Environment two_hosts = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  return {
      {{{"RANK", "abc"}, {"WORLD_SIZE", "2"}},
       ExitCode::Usage,
       "RANK=abc is not an integer of at least 0"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
       ExitCode::Usage,
       "RANK=-1 is not an integer of at least 0"},
      {{{"RANK", "1x"}, {"WORLD_SIZE", "2"}}, ExitCode::Usage, "RANK=1x is not an integer"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}},
       ExitCode::Usage,
       "WORLD_SIZE=0 is not an integer of at least 1"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}},
       ExitCode::Usage,
       "WORLD_SIZE=99999999999 is not"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, ExitCode::Usage, "RANK=2 is not below WORLD_SIZE=2"},
      {{{"RANK", "1"}},
       ExitCode::Usage,
       "RANK=1 is set, but WORLD_SIZE is not: set both or neither"},
      {{{"WORLD_SIZE", "4"}}, ExitCode::Usage, "WORLD_SIZE=4 is set, but RANK is not"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", ""}}), ExitCode::Usage,
       "LOCAL_RANK=1 is set, but LOCAL_WORLD_SIZE is not"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "3"}}), ExitCode::Usage,
       "this host has more ranks (3) than the world (2), says torchrun"},
      {with(kTorchrun, {{"MASTER_PORT", "70000"}}), ExitCode::Usage,
       "MASTER_PORT=70000 is not an integer of at least 1 and at most 65535"},
      {with(kTorchrun, {{"MASTER_PORT", ""}}), ExitCode::Unavailable, "MASTER_PORT is not set"},
      {two_hosts, ExitCode::Unavailable, "Set MASTER_ADDR to the host of rank 0 and MASTER_PORT"},
      {kOpenMpi, ExitCode::Unavailable, "rank 2 of 4 (Open MPI): no variable says where rank 0 is"},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "h"}},
       ExitCode::Unavailable,
       "rank 0 of 2 (PMI): MASTER_PORT is not set"},
      {{{"PMIX_RANK", "1"}},
       ExitCode::Usage,
       "PMIX_RANK=1 is set, but PMIx does not set the number of ranks"},
      {{{"SLURM_STEP_ID", "x"}}, ExitCode::Usage, "SLURM_STEP_ID=x is not a step number"},
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}},
       ExitCode::Usage,
       "SLURM_PROCID=0 is set, but SLURM_NTASKS is not"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[1-"}}), ExitCode::Usage,
       "Slurm's list \"gpu[1-\": a bracket is not closed"},
      {with(kSlurm, {{"SLURM_JOB_ID", ""}}), ExitCode::Unavailable,
       "rank 3 of 4 (Slurm): MASTER_PORT is not set"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", ""}, {"SLURM_NODELIST", ""}}), ExitCode::Unavailable,
       "SLURM_STEP_NODELIST or SLURM_NODELIST names the host"},
  };
}

TEST(RankEnvironment, RefusesNonsenseByNameAndValue) {
  for (const Fault& row : faults()) {
    SCOPED_TRACE(row.message);
    try {
      ADD_FAILURE() << "accepted: " << summary(detect_in(row.variables));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), row.code);
      EXPECT_THAT(error.what(), HasSubstr(row.message));
    }
  }
}

TEST(RankEnvironment, ReadsTheProcessEnvironment) {
  EXPECT_TRUE(process_environment("PATH").has_value());
  EXPECT_FALSE(process_environment("SHERD_NO_SUCH_VARIABLE").has_value());
}

TEST(RankEnvironment, KnowsWhatTheRanksOfAJobShare) {
  const Environment slurm = {
      {"SLURM_JOB_ID", "42"}, {"SLURM_STEP_ID", "3"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}};
  const Environment torchrun = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", "r7"}};
  EXPECT_EQ(detect_in(slurm).job_secret, "42.3");
  // Queued again, a job has the number that it had.
  EXPECT_EQ(detect_in(with(slurm, {{"SLURM_RESTART_COUNT", "2"}})).job_secret, "42.3/2");
  EXPECT_EQ(detect_in(torchrun).job_secret, "r7");
  EXPECT_EQ(detect_in(with(torchrun, {{"SHERD_JOB_SECRET", "abc"}})).job_secret, "abc");
  EXPECT_EQ(detect_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).job_secret, "");
  EXPECT_EQ(detect_in({}).job_secret, "");
}

TEST(RankEnvironment, KnowsWhatALauncherStartsAgain) {
  const auto launch = [](const Environment& variables) {
    const RankEnvironment found = detect_in(variables);
    return found.launch + (found.restarted ? ", again" : "");
  };
  EXPECT_EQ(launch({}), "");
  EXPECT_EQ(launch(kSlurm), "Slurm job 42");
  EXPECT_EQ(launch(with(kSlurm, {{"SLURM_RESTART_COUNT", "0"}})), "Slurm job 42");
  EXPECT_EQ(launch(with(kSlurm, {{"SLURM_RESTART_COUNT", "10"}})), "Slurm job 42, again");
  EXPECT_EQ(launch({{"SLURM_JOB_ID", "7"}}), "Slurm job 7");  // of one process in a job
  EXPECT_EQ(launch(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "none"}})), "");
  EXPECT_EQ(launch(with(kTorchrun,
                        {{"TORCHELASTIC_RUN_ID", "abc"}, {"TORCHELASTIC_RESTART_COUNT", "1"}})),
            "torchrun abc, again");
}

TEST(RankEnvironment, KnowsWhetherItsParentIsTheLauncher) {
  const Environment by_hand = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_FALSE(detect_in({}).ends_with_parent);
  EXPECT_FALSE(detect_in(by_hand).ends_with_parent);
  EXPECT_FALSE(detect_in(with(by_hand, {{"SHERD_SUPERVISOR_FD", "5"}})).ends_with_parent);
  EXPECT_TRUE(detect_in(with(by_hand, {{"TORCHELASTIC_RUN_ID", "none"}})).ends_with_parent);
  EXPECT_TRUE(detect_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).ends_with_parent);
}

TEST(RankEnvironment, ReadsTheTimeout) {
  EXPECT_EQ(detect_in({{"SHERD_TIMEOUT", "90"}}).timeout, std::chrono::seconds(90));
  EXPECT_EQ(detect_in({}).timeout, std::nullopt);
  for (const char* wrong : {"0", "-1", "1.5", "604801", "4294967297", "10min"}) {
    EXPECT_THROW(static_cast<void>(detect_in({{"SHERD_TIMEOUT", wrong}})), Error) << wrong;
  }
}

}  // namespace
}  // namespace sherd::launch
