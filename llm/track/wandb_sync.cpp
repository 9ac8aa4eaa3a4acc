#include "llm/track/wandb_sync.h"

#include <array>
#include <csignal>
#include <optional>
#include <thread>

#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files/system_text.h"

namespace llm::track {

namespace {

using Clock = std::chrono::steady_clock;

// In a group of its own, so that all that it starts can be killed, and with the signals of a
// program that is started from a shell. Answers 0, or an errno.
int spawn(const std::string& folder, pid_t& child) {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_init(&actions);
  sigset_t none;
  sigset_t usual;
  sigemptyset(&none);
  sigfillset(&usual);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &usual);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  std::array<std::string, 3> words = {"wandb", "sync", folder};
  std::array<char*, 4> argv = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  const int error = ::posix_spawnp(&child, "wandb", &actions, &attributes, argv.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  return error;
}

// The status of a child that ended in time; else it is killed.
std::optional<int> wait_for(pid_t child, std::chrono::seconds limit) {
  constexpr std::chrono::milliseconds kInterval{50};
  const auto deadline = Clock::now() + limit;
  int status = 0;
  while (Clock::now() < deadline) {
    if (::waitpid(child, &status, WNOHANG) == child) {
      return status;
    }
    std::this_thread::sleep_for(kInterval);
  }
  ::kill(-child, SIGKILL);
  ::waitpid(child, &status, 0);
  return std::nullopt;
}

}  // namespace

std::string sync_command(const std::string& folder) {
  return "wandb sync " + folder;
}

std::string run_sync(const std::string& folder, std::chrono::seconds limit) {
  const std::string again = ". To try again: " + sync_command(folder);
  pid_t child = -1;
  if (const int error = spawn(folder, child); error != 0) {
    return "tracker wandb: the program wandb could not be started: " +
           sherd::files::errno_text(error) + again;
  }
  const std::optional<int> status = wait_for(child, limit);
  if (!status) {
    return fmt::format("tracker wandb: wandb sync took longer than {} s, and was ended{}",
                       limit.count(), again);
  }
  if (!WIFEXITED(*status) || WEXITSTATUS(*status) != 0) {
    return "tracker wandb: wandb sync failed, as it says above" + again;
  }
  return "tracker wandb: synchronised by " + sync_command(folder);
}

}  // namespace llm::track
