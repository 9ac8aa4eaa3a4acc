#pragma once
// Ranks as processes of their own, forked from the test, over the real rendezvous, and over shared
// memory or c10d.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/loopback_socket.h"
#include "sherd/error.h"
#include "sherd/world.h"

namespace sherd::test {

/// The ways in which ranks of one host can exchange.
inline constexpr Transport kTransports[] = {Transport::SharedMemory, Transport::ProcessGroups};

/// Forks one rank, which calls `body` in the environment of a launcher: it meets the others at
/// `socket`. It exits with 0, or the code of the Error that ended `body` (1 for other exceptions).
/// Call it before the test's process has threads of its own.
inline pid_t fork_rank(const launch::LoopbackSocket& socket, int rank, int world_size,
                       const std::function<void()>& body, int local_size = 0) {
  local_size = local_size == 0 ? world_size : local_size;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child != 0) {
    return child;
  }
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank % local_size).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(world_size).c_str(), 1);
  setenv("LOCAL_WORLD_SIZE", std::to_string(local_size).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(socket.port).c_str(), 1);
  setenv("SHERD_SUPERVISOR_FD", "0", 1);  // as under `sherd launch`; nobody reads it here
  setenv("SHERD_JOB_SECRET", "a secret of the tests", 1);
  if (rank == 0) {
    setenv("SHERD_MASTER_FD", std::to_string(socket.fd.get()).c_str(), 1);
  }
  int status = 0;
  try {
    body();
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    status = static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    status = 1;
  }
  std::fflush(nullptr);
  _exit(status);
}

/// The statuses of ranks that all succeed.
inline std::vector<int> zeros(int ranks) {
  return std::vector<int>(static_cast<size_t>(ranks), 0);
}

/// Waits for them. Answers their exit statuses; 128 + signal for those that were killed.
inline std::vector<int> statuses_of(const std::vector<pid_t>& children) {
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    statuses.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  return statuses;
}

/// Forks `world_size` ranks that meet through World::from_environment() at `socket` and call
/// `body`, which reports a failed comparison by throwing. Answers their exit statuses.
inline std::vector<int> run_processes_at(
    const launch::LoopbackSocket& socket, int world_size, const std::function<void(World)>& body,
    std::optional<std::chrono::milliseconds> timeout = std::chrono::seconds(20),
    c10::DeviceType device = c10::DeviceType::CPU, Transport transport = Transport::Automatic) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    children.push_back(fork_rank(socket, rank, world_size, [&] {
      body(World::from_environment({timeout, device, transport}));
    }));
  }
  return statuses_of(children);
}

/// The same at a free port.
inline std::vector<int> run_processes(
    int world_size, const std::function<void(World)>& body,
    std::optional<std::chrono::milliseconds> timeout = std::chrono::seconds(20),
    c10::DeviceType device = c10::DeviceType::CPU, Transport transport = Transport::Automatic) {
  return run_processes_at(launch::listen_on_loopback({}), world_size, body, timeout, device,
                          transport);
}

/// The same over one transport.
inline std::vector<int> run_processes_over(
    Transport transport, int world_size, const std::function<void(World)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  return run_processes(world_size, body, timeout, c10::DeviceType::CPU, transport);
}

/// The same as ranks of several hosts: processes of different users do not share memory, any more
/// than those of different hosts do. Needs root.
inline bool can_play_hosts() {
  return geteuid() == 0;
}
inline std::vector<int> run_processes_on_hosts(
    int hosts, int local_size, const std::function<void(World)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  std::vector<pid_t> children;
  for (int rank = 0; rank < hosts * local_size; ++rank) {
    const auto as_of_its_host = [&, rank] {
      const uid_t first_user = 1000;
      if (seteuid(first_user + static_cast<uid_t>(rank / local_size)) != 0 ||
          prctl(PR_SET_DUMPABLE, 1) != 0) {  // else its own /proc is closed to it
        throw std::runtime_error("cannot become another user");
      }
      body(World::from_environment({timeout, c10::DeviceType::CPU, Transport::Automatic}));
    };
    children.push_back(fork_rank(socket, rank, hosts * local_size, as_of_its_host, local_size));
  }
  return statuses_of(children);
}

}  // namespace sherd::test
