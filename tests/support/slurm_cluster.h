#pragma once
// A real Slurm of two nodes, started by the test itself.

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/loopback_socket.h"
#include "launch/slurm_job.h"
#include "tests/support/temp_folder.h"
#include "tests/support/two_hosts.h"

namespace sherd::test {

/// munged, slurmctld and two slurmd, n1 and n2 with two cores each, on free ports, with everything
/// that they write in a folder of its own. The nodes are hosts with networks of their own, which
/// know each other's names; without network namespaces both are this host. Their jobs and they end
/// with this object.
class SlurmCluster {
 public:
  SlurmCluster() {
    missing_ = what_is_missing();
    if (!missing_.empty()) {
      return;
    }
    name_hosts();
    write_configuration();
    start(0, "/usr/sbin/munged -F --force --key-file=" + in("munge.key") +
                 " --socket=" + in("socket") + " --pid-file=" + in("munged.pid") +
                 " --log-file=" + in("munged.log") + " --seed-file=" + in("munged.seed"));
    if (!within(kPatience, [this] { return std::filesystem::exists(in("socket")); })) {
      fault_ = "munged does not start here: " + read("munged.log");
      return;
    }
    start(0, "/usr/sbin/slurmctld -D -c -f " + in("slurm.conf"));
    start(0, "/usr/sbin/slurmd -D -N n1 -f " + in("slurm.conf"));
    start(1, "/usr/sbin/slurmd -D -N n2 -f " + in("slurm.conf"));
    if (!within(kPatience, [this] { return run("sinfo -h -t idle -o %D").second == "2\n"; })) {
      fault_ = "Slurm's nodes do not come up here: " + run("sinfo -N").second +
               read("slurmctld.log") + read("slurmd-n1.log");
    }
  }
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;
  ~SlurmCluster() {
    if (missing_.empty() && fault_.empty()) {
      run("scancel --signal=KILL --full --user=root; scancel --user=root");
      within(std::chrono::seconds(10), [this] { return run("squeue -h").second.empty(); });
    }
    for (auto pid = daemons_.rbegin(); pid != daemons_.rend(); ++pid) {
      ::kill(-*pid, SIGKILL);
      ::waitpid(*pid, nullptr, 0);
    }
    kill_what_is_left();
  }

  /// What is not installed here; empty if there is all that it takes.
  [[nodiscard]] const std::string& missing() const { return missing_; }
  /// Why it does not run; empty if it does.
  [[nodiscard]] const std::string& fault() const { return fault_; }
  /// What jobs need before them where both nodes are this host, whose names lead nowhere.
  [[nodiscard]] std::vector<std::string> setup() const {
    return has_networks_ ? std::vector<std::string>{}
                         : std::vector<std::string>{"--setup", "export MASTER_ADDR=127.0.0.1"};
  }
  /// A command of the shell's that runs a program on the first node.
  [[nodiscard]] std::string line() const { return "exec " + on(0) + "\"$0\" \"$@\""; }
  /// What programs of Slurm's need in their environment, as "NAME=value".
  [[nodiscard]] std::string variable() const { return "SLURM_CONF=" + in("slurm.conf"); }
  /// Runs a command of the shell's; its exit code, and what it printed.
  [[nodiscard]] std::pair<int, std::string> ask(const std::string& command) const {
    return run(command);
  }
  /// Asks until `answered` says yes; false when time is up.
  template <typename Answered>
  static bool within(std::chrono::seconds limit, const Answered& answered) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!answered()) {
      if (std::chrono::steady_clock::now() > deadline) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return true;
  }

 private:
  static constexpr std::chrono::seconds kPatience{30};

  static std::string what_is_missing() {
    if (::geteuid() != 0) {
      return "a Slurm of one's own needs root";
    }
    for (const char* const program : {"/usr/sbin/munged", "/usr/sbin/slurmctld", "/usr/sbin/slurmd",
                                      "/usr/bin/sbatch", "/usr/bin/srun"}) {
      if (::access(program, X_OK) != 0) {
        return std::string(program) + " is not installed: scripts/setup --tests";
      }
    }
    return "";
  }

  [[nodiscard]] std::string on(int host) const { return has_networks_ ? hosts_.on(host) : ""; }
  [[nodiscard]] std::string address(int host) const {
    return has_networks_ ? TwoHosts::address(host) : "127.0.0.1";
  }
  static std::string own_name() {
    std::array<char, 256> name{};
    ::gethostname(name.data(), name.size() - 1);
    return name.data();
  }

  // What each node finds in /etc/hosts.
  void name_hosts() const {
    for (const int host : {0, 1}) {
      hosts_.resolve(host, "localhost", "127.0.0.1");
      hosts_.resolve(host, own_name(), address(host));
      hosts_.resolve(host, "n1", address(0));
      hosts_.resolve(host, "n2", address(1));
    }
  }

  [[nodiscard]] std::string in(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(in(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void write_configuration() const {
    run("umask 377 && head -c 1024 /dev/urandom > " + in("munge.key"));
    const auto port = [] { return std::to_string(launch::listen_on_loopback({}).port); };
    std::ofstream file(in("slurm.conf"));
    file << "ClusterName=one\nSlurmctldHost=" << own_name() << "(" << address(0) << ")\n"
         << "SlurmctldPort=" << port()
         << "\nSlurmUser=root\nSlurmdUser=root\n"
         // A job is queued again no sooner than its credential has expired.
         << "AuthType=auth/munge\nAuthInfo=socket=" << in("socket") << ",cred_expire=10\n"
         << "CredType=cred/munge\nMpiDefault=none\nProctrackType=proctrack/linuxproc\n"
         << "TaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n"
         << "AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\n"
         << "SelectTypeParameters=CR_CPU\nReturnToService=2\nKillWait=5\n"
         << "SchedulerParameters=sched_interval=2,bf_interval=2\n"
         << (has_networks_ ? "" : "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n")
         << "StateSaveLocation=" << in("state") << "\nSlurmdSpoolDir=" << in("spool-%n")
         << "\nSlurmctldPidFile=" << in("slurmctld.pid")
         << "\nSlurmdPidFile=" << in("slurmd-%n.pid")
         << "\nSlurmctldLogFile=" << in("slurmctld.log")
         << "\nSlurmdLogFile=" << in("slurmd-%n.log") << "\n";
    for (const int host : {0, 1}) {
      file << "NodeName=n" << host + 1 << " NodeHostname=" << own_name()
           << " NodeAddr=" << address(host) << " Port=" << port() << " CPUs=2 State=UNKNOWN\n";
    }
    file << "PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP "
            "OverSubscribe=FORCE\n";
  }

  void start(int host, const std::string& command) {
    const std::string line =
        "exec " + (has_networks_ ? hosts_.with_control_groups_on(host) : "") + command;
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::freopen("/dev/null", "w", stdout);
      ::freopen("/dev/null", "w", stderr);
      ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      ::_exit(127);
    }
    ::setpgid(pid, pid);
    daemons_.push_back(pid);
  }

  // On the first node.
  std::pair<int, std::string> run(const std::string& command) const {
    const std::string line = "export " + variable() + "; (" + command + ") 2>&1";
    std::FILE* const pipe =
        ::popen(("exec " + on(0) + "/bin/sh -c " + launch::shell_word(line)).c_str(), "re");
    std::string text;
    std::array<char, 4096> bytes{};
    for (std::size_t size = 0; (size = std::fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) {
      text.append(bytes.data(), size);
    }
    return {WEXITSTATUS(::pclose(pipe)), text};
  }

  // Steps of jobs have sessions of their own, and this cluster's configuration in their
  // environment.
  void kill_what_is_left() const {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
      std::ifstream file(entry.path() / "environ", std::ios::binary);
      const std::string all{std::istreambuf_iterator<char>(file), {}};
      if (all.find(variable()) != std::string::npos) {
        ::kill(std::atoi(entry.path().filename().c_str()), SIGKILL);
      }
    }
  }

  TempFolder folder_;
  TwoHosts hosts_;
  bool has_networks_ = hosts_.fault().empty();
  std::string missing_;
  std::string fault_;
  std::vector<pid_t> daemons_;
};

}  // namespace sherd::test
