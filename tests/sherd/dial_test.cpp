#include <array>
#include <chrono>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/loopback_socket.h"
#include "rendezvous/network.h"

namespace sherd::test {
namespace {

using detail::Dialled;
using detail::Dialler;
using detail::Endpoint;
using std::chrono::milliseconds;
using testing::HasSubstr;

/// A resolver that knows one name, "many": 127.0.0.2 and 127.0.0.1, in this order.
int resolve_many(const char* name, const char* port, const addrinfo* hints, addrinfo** found) {
  if (std::string(name) != "many") {
    return EAI_NONAME;
  }
  addrinfo* second = nullptr;
  const int failure = getaddrinfo("127.0.0.2", port, hints, found);
  return failure != 0
             ? failure
             : (getaddrinfo("127.0.0.1", port, hints, &second), (*found)->ai_next = second, 0);
}

/// A resolver that takes `time` to find 127.0.0.1.
detail::Resolver slow(milliseconds time) {
  return [time](const char*, const char* port, const addrinfo* hints, addrinfo** found) {
    std::this_thread::sleep_for(time);
    return getaddrinfo("127.0.0.1", port, hints, found);
  };
}

Dialled dial(const Endpoint& endpoint, const detail::Resolver& resolver = &getaddrinfo) {
  return Dialler({endpoint}, resolver).dial(milliseconds(2000)).front();
}

TEST(Dial, AnswersAndRefusalsAreTold) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  const Endpoint open{"127.0.0.1", socket.port};
  EXPECT_EQ(dial(open).fault, "");
  EXPECT_EQ(to_text(open, dial(open)), "127.0.0.1:" + std::to_string(socket.port));
  const Endpoint closed{"127.0.0.2", socket.port};  // of the same host, and nobody listens there
  EXPECT_EQ(dial(closed).fault, "Connection refused");
  EXPECT_THAT(dial({"name.invalid", 1}).fault, HasSubstr("the name does not resolve: "));
}

TEST(Dial, TriesAllAddressesOfAName) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  const Dialled dialled = dial({"many", socket.port}, &resolve_many);
  EXPECT_EQ(dialled.fault, "");
  EXPECT_EQ(dialled.address, "127.0.0.1");
  const std::uint16_t closed = launch::listen_on_loopback({}).port;
  const Endpoint nobody{"many", closed};
  EXPECT_EQ(to_text(nobody, dial(nobody, &resolve_many)),
            "many:" + std::to_string(closed) +
                ", which is 127.0.0.2, 127.0.0.1 here: Connection refused");
}

TEST(Dial, WaitsForANameNoLongerThanForAnAnswer) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  Dialler dialler({{"slow", socket.port}, {"127.0.0.1", socket.port}}, slow(milliseconds(1500)));
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Dialled> first = dialler.dial(milliseconds(100));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(1200));
  EXPECT_EQ(first[0].fault, "the name is still being looked up");
  EXPECT_EQ(first[1].fault, "");
  EXPECT_EQ(dialler.dial(milliseconds(10'000))[0].fault, "");  // the same lookup, which has gone on
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(2900));
}

TEST(Dial, ASlowNameHoldsUpNoOther) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  Dialler dialler({{"slow", socket.port}, {"127.0.0.1", socket.port}}, slow(milliseconds(2000)));
  std::thread dialling([&] { static_cast<void>(dialler.dial(milliseconds(1500))); });
  pollfd called{socket.fd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&called, 1, 1000), 1);
  dialling.join();
}

// The system's queue of connections that nobody has accepted is short.
TEST(Dial, AnAnsweringSocketAnswersAnyNumber) {
  const detail::AnsweringSocket socket("127.0.0.1");
  for (const Dialled& dialled :
       Dialler(std::vector<Endpoint>(200, {"127.0.0.1", socket.port()})).dial(milliseconds(3000))) {
    EXPECT_EQ(dialled.fault, "");
  }
}

// In a network of its own where one port is all that there is to connect from.
void dial_oneself() {
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWNET) != 0) {
    ::_exit(77);
  }
  const int any = ::socket(AF_INET, SOCK_DGRAM, 0);
  ifreq loopback{"lo", {}};
  loopback.ifr_flags = IFF_UP;
  std::ofstream range("/proc/sys/net/ipv4/ip_local_port_range");
  if (::ioctl(any, SIOCSIFFLAGS, &loopback) != 0 || !(range << "41002 41003" << std::flush)) {
    ::_exit(77);
  }
  int refused = 0;
  for (const int port : {41002, 41003}) {
    refused += dial({"127.0.0.1", static_cast<std::uint16_t>(port)}).fault == "Connection refused";
  }
  ::_exit(refused == 2 ? 0 : 1);
}

TEST(Dial, ASocketThatAnswersItselfIsNobody) {
  const pid_t child = ::fork();
  if (child == 0) {
    dial_oneself();
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "SKIPPED: no network namespaces here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace sherd::test
