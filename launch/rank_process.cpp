#include "launch/rank_process.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sherd/error.h"

namespace sherd::launch {
namespace {

/// What the child needs, all made before the fork: after it, in a process that may have had other
/// threads, only async-signal-safe calls are allowed.
struct ChildPlan {
  std::vector<char*> argv;
  std::vector<char*> envp;
  pid_t parent = 0;
  int stderr_fd = -1;
  int status_fd = -1;  ///< carries errno if exec fails; closed by exec otherwise
  std::vector<int> kept_fds;
  bool keep_stdin = false;
  sigset_t signal_mask{};
};

std::vector<std::string> make_environment(const RankStart& start) {
  std::vector<std::string> names = start.unset_variables;
  for (const std::string& variable : start.variables) {
    names.push_back(variable.substr(0, variable.find('=')));
  }
  std::vector<std::string> all = start.variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (std::find(names.begin(), names.end(), text.substr(0, text.find('='))) == names.end()) {
      all.emplace_back(text);
    }
  }
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> all;
  all.reserve(strings.size() + 1);
  for (std::string& string : strings) {
    all.push_back(string.data());
  }
  all.push_back(nullptr);
  return all;
}

[[noreturn]] void become_rank(const ChildPlan& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) {
    ::_exit(static_cast<int>(ExitCode::PeerLost));  // it died before the line above
  }
  ::dup2(plan.stderr_fd, STDERR_FILENO);
  if (!plan.keep_stdin) {
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(null, STDIN_FILENO);
  }
  for (const int fd : plan.kept_fds) {
    ::fcntl(fd, F_SETFD, 0);
  }
  ::sigprocmask(SIG_SETMASK, &plan.signal_mask, nullptr);
  ::execvpe(plan.argv[0], plan.argv.data(), plan.envp.data());
  const int reason = errno;
  const ssize_t ignored = ::write(plan.status_fd, &reason, sizeof reason);
  ::_exit(ignored > 0 ? 127 : 126);
}

}  // namespace

RankProcess::RankProcess(const RankStart& start) {
  Pipe errors = make_pipe();
  auto [news, news_of_child] = make_socket_pair();
  Pipe status = make_pipe();
  RankStart child = start;
  child.variables.push_back("SHERD_SUPERVISOR_FD=" + std::to_string(news_of_child.get()));
  std::vector<std::string> command = start.command;
  std::vector<std::string> environment = make_environment(child);

  ChildPlan plan;
  plan.argv = pointers(command);
  plan.envp = pointers(environment);
  plan.parent = ::getpid();
  plan.stderr_fd = errors.write_end.get();
  plan.status_fd = status.write_end.get();
  plan.kept_fds.push_back(news_of_child.get());
  if (start.inherited_fd >= 0) {
    plan.kept_fds.push_back(start.inherited_fd);
  }
  plan.keep_stdin = start.keep_stdin;
  plan.signal_mask = start.signal_mask;

  pid_ = ::fork();
  if (pid_ == 0) {
    become_rank(plan);
  }
  if (pid_ < 0) {
    throw Error(ExitCode::Unavailable, std::string("cannot start a rank: ") + std::strerror(errno));
  }
  status.write_end.close();
  int reason = 0;
  ssize_t count = 0;
  do {
    count = ::read(status.read_end.get(), &reason, sizeof reason);
  } while (count < 0 && errno == EINTR);
  if (count == sizeof reason) {
    ::waitpid(pid_, nullptr, 0);
    throw Error(ExitCode::InputMissing,
                "cannot execute " + command.front() + ": " + std::strerror(reason));
  }
  stderr_ = std::move(errors.read_end);
  news_ = std::move(news);
  set_non_blocking(stderr_.get());
  set_non_blocking(news_.get());
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      stderr_(std::move(other.stderr_)),
      news_(std::move(other.news_)) {}

RankProcess::~RankProcess() {
  if (running()) {
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void RankProcess::signal(int number) const {
  if (running()) {
    ::kill(pid_, number);
  }
}

void RankProcess::tell(const std::string& line) const {
  write_all(news_.get(), line + "\n");
}

std::string RankProcess::heard() const {
  return read_available(news_.get()).data;
}

std::optional<ExitStatus> RankProcess::reap() {
  int status = 0;
  if (!running() || ::waitpid(pid_, &status, WNOHANG) != pid_) {
    return std::nullopt;
  }
  pid_ = -1;
  return ExitStatus::from_wait(status);
}

}  // namespace sherd::launch
