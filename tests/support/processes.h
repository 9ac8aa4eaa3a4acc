#pragma once
// Ranks as processes of their own, forked from the test, over the real rendezvous, and over shared
// memory or c10d.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "launch/loopback_socket.h"
#include "sherd/error.h"
#include "sherd/world.h"

namespace sherd::test {

/// The ways in which ranks of one host can exchange.
inline constexpr Transport kTransports[] = {Transport::SharedMemory, Transport::ProcessGroups};

/// Forks `world_size` ranks that meet through World::from_environment() and call `body`. Answers
/// their exit statuses: 0, the code of the Error that ended one (1 for other exceptions), 128 +
/// signal. `body` reports a failed comparison by throwing. Call it before the test's process has
/// threads of its own.
inline std::vector<int> run_processes(int world_size, const std::function<void(World)>& body,
                                      std::chrono::milliseconds timeout = std::chrono::seconds(20),
                                      c10::DeviceType device = c10::DeviceType::CPU,
                                      Transport transport = Transport::Automatic) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(world_size).c_str(), 1);
    setenv("LOCAL_WORLD_SIZE", std::to_string(world_size).c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(socket.port).c_str(), 1);
    setenv("SHERD_SUPERVISOR_FD", "0", 1);  // as under `sherd launch`; nobody reads it here
    if (rank == 0) {
      setenv("SHERD_MASTER_FD", std::to_string(socket.fd.get()).c_str(), 1);
    }
    int status = 0;
    try {
      body(World::from_environment({timeout, device, transport}));
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
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    statuses.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  return statuses;
}

/// The same over one transport.
inline std::vector<int> run_processes_over(
    Transport transport, int world_size, const std::function<void(World)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  return run_processes(world_size, body, timeout, c10::DeviceType::CPU, transport);
}

}  // namespace sherd::test
