// Other programs that reach the ports of a run.

#include <csignal>

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "rendezvous/network.h"
#include "sherd/fully_shard.h"
#include "tests/support/connect.h"
#include "tests/support/processes.h"
#include "tests/support/small_net.h"

namespace sherd::test {
namespace {

void require(bool holds, const char* what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

// Held connections would take the descriptors that a run needs.
TEST(Strangers, FindNoPortOpenOnceRanksHaveMet) {
  for (const Transport transport : kTransports) {
    const auto statuses = run_processes_over(transport, 2, [](World world) {
      const auto nobody_gets_in = [] {
        const std::vector<int> sockets = detail::listening_sockets();
        require(!sockets.empty(), "a rank listens on no socket");
        for (const int socket : sockets) {
          require(!connects(port_of(socket)), "a stranger gets in");
        }
      };
      world.barrier();
      nobody_gets_in();
      auto model = fully_shard(make_net(), Mesh::shard(world));  // connects, where it must
      model(make_example(world.rank()).x).sum().backward();
      world.barrier();
      nobody_gets_in();
      world.barrier();
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
  }
}

/// A process that writes garbage under these keys, and under all that it can list, as long as the
/// store answers.
pid_t start_writer(std::uint16_t port, const std::vector<std::string>& keys, bool lists) {
  const pid_t writer = fork();
  if (writer != 0) {
    return writer;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.waitWorkers = false;
    options.timeout = std::chrono::seconds(20);
    c10d::TCPStore store("127.0.0.1", options);
    const std::vector<uint8_t> garbage(100, 0xff);
    for (;;) {
      for (const std::string& key : keys) {
        store.set(key, garbage);
      }
      for (const std::string& key : lists ? store.listKeys() : std::vector<std::string>{}) {
        store.set(key, garbage);
      }
    }
  } catch (const std::exception&) {
    _exit(0);  // the store is gone
  }
}

// The rendezvous of a run writes what a stranger knows from its source.
TEST(Strangers, ThatWriteKnownKeysChangeNothing) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  std::vector<std::string> keys;
  for (const char* group : {"sherd/0/0/gather/", "sherd/0/0/reduce/", "sherd/roster/failed/", ""}) {
    for (const char* key : {"0/0", "0/1", "0", "1", "rank_0", "rank_1", "came/0", "came/1"}) {
      keys.push_back(std::string(group) + key);
    }
  }
  const pid_t writer = start_writer(socket.port, keys, false);
  EXPECT_EQ(run_processes_at(socket, 2, [](World world) { world.barrier(); }),
            (std::vector<int>{0, 0}));
  ::kill(writer, SIGKILL);
  ::waitpid(writer, nullptr, 0);
}

// One that overwrites whatever it sees may end a run, but only by a message that tells.
TEST(Strangers, ThatOverwriteEverythingAreNamed) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  const pid_t writer = start_writer(socket.port, {}, true);
  for (const int status : run_processes_at(
           socket, 2, [](World world) { world.barrier(); }, std::chrono::seconds(5))) {
    EXPECT_TRUE(status == 0 || status == static_cast<int>(ExitCode::Unavailable) ||
                status == static_cast<int>(ExitCode::PeerLost) ||
                status == static_cast<int>(ExitCode::Hang))
        << status;
  }
  ::kill(writer, SIGKILL);
  ::waitpid(writer, nullptr, 0);
}

}  // namespace
}  // namespace sherd::test
