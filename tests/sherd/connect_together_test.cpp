// Ranks that connect over a real store, which one of them cannot.

#include "comm/connect_together.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "sherd/error.h"
#include "tests/support/expect_error.h"

namespace sherd::test {
namespace {

using c10d::TCPStore;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kStoreTimeout(20);

c10::intrusive_ptr<TCPStore> store_of(int rank, int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = rank == 0;
  options.waitWorkers = false;
  options.timeout = kStoreTimeout;
  return c10::make_intrusive<TCPStore>("127.0.0.1", options);
}

// Rank 1 waits in the store for what rank 0 would have published, as NCCL does for the id of a
// communicator, and is told meanwhile.
TEST(ConnectTogether, TellsTheReasonWhileAConnectionWaitsInTheStore) {
  const auto server = store_of(0, 0);
  const auto expect_told = [](const c10::intrusive_ptr<TCPStore>& store, int rank,
                              const std::function<void()>& connect) {
    detail::Connecting connecting(store, {rank, 2, "lo (127.0.0.1)"}, std::chrono::seconds(60));
    const auto start = Clock::now();
    expect_error(
        [&] { connecting.on_all_ranks(connect); }, ExitCode::Unavailable,
        {"On rank 0 (host ", "that fails: no usable interface", "met over lo (127.0.0.1)"});
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(4)) << "rank " << rank;
  };
  std::thread other([&] {
    const auto store = store_of(1, server->getPort());
    expect_told(store, 1, [store] { static_cast<void>(store->get("id")); });
  });
  expect_told(server, 0, [] { throw std::runtime_error("no usable interface"); });
  other.join();
}

}  // namespace
}  // namespace sherd::test
