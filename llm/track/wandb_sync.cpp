#include "llm/track/wandb_sync.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files/system_text.h"
#include "llm/track/shell_word.h"

namespace llm::track {

namespace {

using Clock = std::chrono::steady_clock;

// What other services are logged in to with.
bool is_secret_of_others(std::string_view variable) {
  return variable.starts_with("HF_TOKEN=") || variable.starts_with("HUGGING_FACE_HUB_TOKEN=") ||
         variable.starts_with("MLFLOW_");
}

std::vector<char*> environment_for_wandb() {
  std::vector<char*> kept;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    if (!is_secret_of_others(*variable)) {
      kept.push_back(*variable);
    }
  }
  kept.push_back(nullptr);
  return kept;
}

// Starts it in its own session: all its children can be killed at once, and it neither reads the
// terminal nor gets its signals. Signal handling is that of a program started from a shell.
// Returns 0, or an errno.
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
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  std::array<std::string, 3> words = {"wandb", "sync", folder};
  std::array<char*, 4> argv = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  std::vector<char*> environment = environment_for_wandb();
  const int error =
      ::posix_spawnp(&child, "wandb", &actions, &attributes, argv.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  return error;
}

enum class Outcome { Done, Failed, Unknown, TooLong, Stopped };

Outcome outcome_of(int status) {
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? Outcome::Done : Outcome::Failed;
}

// A child that has not ended in time is killed.
Outcome wait_for(pid_t child, std::chrono::milliseconds limit,
                 const std::function<bool()>& stop_requested) {
  constexpr std::chrono::milliseconds kInterval{50};
  const auto deadline = Clock::now() + limit;
  int status = 0;
  bool is_stopped = false;
  while (Clock::now() < deadline && !is_stopped) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) {
      return outcome_of(status);
    }
    if (ended < 0 && errno != EINTR) {
      return Outcome::Unknown;  // where children are nobody's to wait for
    }
    std::this_thread::sleep_for(kInterval);
    is_stopped = stop_requested && stop_requested();
  }
  ::kill(-child, SIGKILL);
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return is_stopped ? Outcome::Stopped : Outcome::TooLong;
}

}  // namespace

std::string sync_command(const std::string& folder) {
  return "wandb sync " + shell_word(folder);
}

std::string run_sync(const std::string& folder, std::chrono::milliseconds limit,
                     const std::function<bool()>& stop_requested) {
  const std::string again = ". To try again: " + sync_command(folder);
  pid_t child = -1;
  if (const int error = spawn(folder, child); error != 0) {
    return "tracker wandb: the program wandb could not be started: " +
           sherd::files::errno_text(error) + again;
  }
  switch (wait_for(child, limit, stop_requested)) {
    case Outcome::Done:
      return "tracker wandb: synchronised by " + sync_command(folder);
    case Outcome::Failed:
      return "tracker wandb: wandb sync failed; its output is above" + again;
    case Outcome::Unknown:
      return "tracker wandb: wandb sync has ended, with an unknown result" + again;
    case Outcome::Stopped:
      return "tracker wandb: wandb sync was ended because a stop was requested" + again;
    case Outcome::TooLong:
      break;
  }
  return fmt::format("tracker wandb: wandb sync took longer than {:g} s, and was ended{}",
                     static_cast<double>(limit.count()) / 1e3, again);
}

}  // namespace llm::track
