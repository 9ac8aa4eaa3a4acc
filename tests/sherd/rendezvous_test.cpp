// Several rendezvous in a store that outlives them, as that of torchrun's agent.

#include "world/rendezvous.h"

#include <chrono>
#include <future>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "launch/loopback_socket.h"
#include "tests/support/expect_error.h"

namespace sherd::test {
namespace {

using std::chrono::milliseconds;

class AgentStore : public testing::Test {
 protected:
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> meet_as(int rank, milliseconds timeout) const {
    launch::RankEnvironment environment;
    environment.rank = rank;
    environment.world_size = 2;
    environment.master_address = "127.0.0.1";
    environment.master_port = agent_->getPort();
    environment.agent_store = true;
    environment.job_secret = "job";
    return detail::meet(environment, timeout, /*closes_store=*/false);
  }
  [[nodiscard]] std::vector<c10::intrusive_ptr<c10d::Store>> both_meet() const {
    auto other = std::async(std::launch::async, [&] { return meet_as(1, milliseconds(20'000)); });
    return {meet_as(0, milliseconds(20'000)), other.get()};
  }

  c10::intrusive_ptr<c10d::TCPStore> agent_ = [] {
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.port = 0;
    options.waitWorkers = false;
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }();
};

TEST_F(AgentStore, RanksThatAreStartedAgainFindNothingOfThePast) {
  const auto first = both_meet();
  first[0]->set("sherd/0/0", "the past");
  EXPECT_TRUE(first[1]->check({"sherd/0/0"}));
  const auto second = both_meet();
  EXPECT_FALSE(second[0]->check({"sherd/0/0"}));
  second[1]->set("sherd/0/0", "now");
  EXPECT_EQ(second[0]->get_to_str("sherd/0/0"), "now");
}

TEST_F(AgentStore, ARankThatCameInThePastHasNotComeAgain) {
  static_cast<void>(both_meet());
  expect_error([&] { static_cast<void>(meet_as(0, milliseconds(600))); }, ExitCode::PeerLost,
               {"rank 1 did not come in time"});
  expect_error([&] { static_cast<void>(meet_as(1, milliseconds(600))); }, ExitCode::PeerLost,
               {"rank 0 did not come in time"});
}

}  // namespace
}  // namespace sherd::test
