#pragma once
// A real Slurm of two nodes on this host, started by the test itself.

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/loopback_socket.h"
#include "tests/support/temp_folder.h"

namespace sherd::test {

/// munged, slurmctld and two slurmd, n1 and n2 with two cores each, on free ports, with everything
/// that they write in a folder of its own. Their jobs and they end with this object.
class SlurmCluster {
 public:
  SlurmCluster() {
    fault_ = missing();
    if (!fault_.empty()) {
      return;
    }
    write_configuration();
    start({"/usr/sbin/munged", "-F", "--key-file=" + in("munge.key"), "--socket=" + in("socket"),
           "--pid-file=" + in("munged.pid"), "--log-file=" + in("munged.log"),
           "--seed-file=" + in("munged.seed"), "--force"});
    if (!within(kPatience, [this] { return std::filesystem::exists(in("socket")); })) {
      fault_ = "munged does not start here: " + read("munged.log");
      return;
    }
    start({"/usr/sbin/slurmctld", "-D", "-c", "-f", in("slurm.conf")});
    start({"/usr/sbin/slurmd", "-D", "-N", "n1", "-f", in("slurm.conf")});
    start({"/usr/sbin/slurmd", "-D", "-N", "n2", "-f", in("slurm.conf")});
    if (!within(kPatience, [this] { return run("sinfo -h -t idle -o %D").second == "2\n"; })) {
      fault_ = "Slurm's nodes do not come up here: " + run("sinfo -N").second +
               read("slurmctld.log") + read("slurmd-n1.log");
    }
  }
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;
  ~SlurmCluster() {
    if (fault_.empty()) {
      run("scancel --user=root");
      within(std::chrono::seconds(10), [this] { return run("squeue -h").second.empty(); });
    }
    for (auto pid = daemons_.rbegin(); pid != daemons_.rend(); ++pid) {
      ::kill(-*pid, SIGKILL);
      ::waitpid(*pid, nullptr, 0);
    }
  }

  /// Why there is none; empty if it runs.
  [[nodiscard]] const std::string& fault() const { return fault_; }
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

  static std::string missing() {
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

  [[nodiscard]] std::string in(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(in(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void write_configuration() const {
    run("umask 377 && head -c 1024 /dev/urandom > " + in("munge.key"));
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    const auto port = [] { return std::to_string(launch::listen_on_loopback({}).port); };
    std::ofstream file(in("slurm.conf"));
    file << "ClusterName=one\nSlurmctldHost=" << host.data() << "(127.0.0.1)\n"
         << "SlurmctldPort=" << port()
         << "\nSlurmUser=root\nSlurmdUser=root\n"
         // A job is queued again no sooner than its credential has expired.
         << "AuthType=auth/munge\nAuthInfo=socket=" << in("socket") << ",cred_expire=10\n"
         << "CredType=cred/munge\nMpiDefault=none\nProctrackType=proctrack/linuxproc\n"
         << "TaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n"
         << "AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\n"
         << "SelectTypeParameters=CR_CPU\nReturnToService=2\n"
         << "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n"
         << "StateSaveLocation=" << in("state") << "\nSlurmdSpoolDir=" << in("spool-%n")
         << "\nSlurmctldPidFile=" << in("slurmctld.pid")
         << "\nSlurmdPidFile=" << in("slurmd-%n.pid")
         << "\nSlurmctldLogFile=" << in("slurmctld.log")
         << "\nSlurmdLogFile=" << in("slurmd-%n.log") << "\n";
    for (const char* const node : {"n1", "n2"}) {
      file << "NodeName=" << node << " NodeHostname=" << host.data()
           << " NodeAddr=127.0.0.1 Port=" << port() << " CPUs=2 State=UNKNOWN\n";
    }
    file << "PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP "
            "OverSubscribe=FORCE\n";
  }

  void start(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::freopen("/dev/null", "w", stdout);
      ::freopen("/dev/null", "w", stderr);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::setpgid(pid, pid);
    daemons_.push_back(pid);
  }

  std::pair<int, std::string> run(const std::string& command) const {
    std::FILE* const pipe =
        ::popen(("export " + variable() + "; (" + command + ") 2>&1").c_str(), "re");
    std::string text;
    std::array<char, 4096> bytes{};
    for (std::size_t size = 0; (size = std::fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) {
      text.append(bytes.data(), size);
    }
    return {WEXITSTATUS(::pclose(pipe)), text};
  }

  TempFolder folder_;
  std::string fault_;
  std::vector<pid_t> daemons_;
};

}  // namespace sherd::test
