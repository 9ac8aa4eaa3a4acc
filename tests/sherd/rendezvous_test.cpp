// Where ranks meet; several times in a store that outlives them, as that of torchrun's agent.

#include "rendezvous/rendezvous.h"

#include <array>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "launch/loopback_socket.h"
#include "rendezvous/network.h"
#include "tests/support/expect_error.h"

namespace sherd::test {
namespace {

using std::chrono::milliseconds;

class AgentStore : public testing::Test {
 protected:
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> meet_as(int rank, milliseconds timeout,
                                                        const Version& version = kVersion) const {
    launch::RankEnvironment environment;
    environment.rank = rank;
    environment.world_size = 2;
    environment.master_address = "127.0.0.1";
    environment.master_port = agent_->getPort();
    environment.agent_store = true;
    environment.job_secret = secret_.at(static_cast<std::size_t>(rank));
    return detail::meet(environment, timeout, /*closes_store=*/false, version).store;
  }
  [[nodiscard]] std::vector<c10::intrusive_ptr<c10d::Store>> both_meet() const {
    auto other = std::async(std::launch::async, [&] { return meet_as(1, milliseconds(20'000)); });
    return {meet_as(0, milliseconds(20'000)), other.get()};
  }

  std::array<std::string, 2> secret_ = {"job", "job"};
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
  EXPECT_EQ(first[1]->get_to_str("sherd/0/0"), "the past");  // waits for it
  const auto second = both_meet();
  EXPECT_FALSE(second[0]->check({"sherd/0/0"}));
  second[1]->set("sherd/0/0", "now");
  EXPECT_EQ(second[0]->get_to_str("sherd/0/0"), "now");
}

TEST_F(AgentStore, ARankWithAnotherSecretIsNamed) {
  secret_[1] = "another";
  auto other = std::async(std::launch::async, [&] {
    expect_error([&] { static_cast<void>(meet_as(1, milliseconds(1500))); }, ExitCode::PeerLost,
                 {"did not come in time"});
  });
  expect_error([&] { static_cast<void>(meet_as(0, milliseconds(1500))); }, ExitCode::PeerLost,
               {"rank 1 (which has another job secret: set SHERD_JOB_SECRET alike on all hosts)"});
  other.get();
}

TEST_F(AgentStore, ARankOfAnotherVersionIsNamedOnAll) {
  const std::string own = std::to_string(kVersion.major) + "." + std::to_string(kVersion.minor) +
                          "." + std::to_string(kVersion.patch);
  const std::vector<std::string> parts = {"rank 1 is Sherd 7.8.9, and rank 0 is " + own +
                                          ". Start all ranks with the same version."};
  auto other = std::async(std::launch::async, [&] {
    expect_error(
        [&] {
          static_cast<void>(meet_as(1, milliseconds(20'000), {7, 8, 9}));
        },
        ExitCode::RanksDisagree, parts);
  });
  expect_error([&] { static_cast<void>(meet_as(0, milliseconds(20'000))); },
               ExitCode::RanksDisagree, parts);
  other.get();
}

TEST_F(AgentStore, ARankThatCameInThePastHasNotComeAgain) {
  static_cast<void>(both_meet());
  expect_error([&] { static_cast<void>(meet_as(0, milliseconds(600))); }, ExitCode::PeerLost,
               {"rank 1 did not come in time"});
  expect_error([&] { static_cast<void>(meet_as(1, milliseconds(600))); }, ExitCode::PeerLost,
               {"rank 0 did not come in time"});
}

/// At which address two ranks meet that know the first of them by `host`, where it listens on
/// `socket`: on rank 0, and on rank 1.
std::vector<std::string> addresses_of_meeting(const std::string& host, int socket) {
  const auto address_on = [&](int rank) {
    launch::RankEnvironment environment;
    environment.rank = rank;
    environment.world_size = 2;
    environment.master_address = host;
    environment.master_port = detail::port_of(socket);
    environment.master_fd = socket;  // of rank 0, whose store closes it
    return detail::meet(environment, milliseconds(20'000), /*closes_store=*/true);
  };
  auto other = std::async(std::launch::async, address_on, 1);
  const detail::Rendezvous own = address_on(0);
  return {own.address, other.get().address};
}

// A name may have addresses that do not answer: whoever goes on takes this one.
TEST(Meet, GivesTheAddressThatAnswered) {
  const std::vector<std::string> loopback = {"127.0.0.1", "127.0.0.1"};
  EXPECT_EQ(addresses_of_meeting("localhost", launch::listen_on_loopback({}).fd.release()),
            loopback);
  EXPECT_EQ(addresses_of_meeting("127.0.0.1", launch::listen_on_loopback({}).fd.release()),
            loopback);
}

TEST(Meet, TakesAddressesOfBothKinds) {
  int socket = -1;
  try {
    socket = detail::listen_on("::1", 0);
  } catch (const Error&) {
    GTEST_SKIP() << "SKIPPED: no IPv6 here";
  }
  EXPECT_EQ(addresses_of_meeting("::1", socket), (std::vector<std::string>{"::1", "::1"}));
}

}  // namespace
}  // namespace sherd::test
