#include "rendezvous/network.h"

#include <algorithm>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/loopback_socket.h"
#include "tests/support/connect.h"

namespace sherd::test {
namespace {

TEST(Network, NamesTheInterfaceOfAnAddress) {
  EXPECT_EQ(detail::with_interface("127.0.0.1"), "lo (127.0.0.1)");
  EXPECT_EQ(detail::with_interface("192.0.2.1"), "192.0.2.1");
}

TEST(Network, AListeningSocketAdmitsNobodyWhileItIsClosed) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  EXPECT_TRUE(connects(socket.port));
  detail::set_admitting(socket.fd.get(), false);
  EXPECT_FALSE(connects(socket.port));
  detail::set_admitting(socket.fd.get(), true);
  EXPECT_TRUE(connects(socket.port));
}

TEST(Network, AConnectionOutlivesTheClosing) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  const launch::FileDescriptor client = connect_to(socket.port);
  const launch::FileDescriptor server(::accept(socket.fd.get(), nullptr, nullptr));
  detail::set_admitting(socket.fd.get(), false);
  ASSERT_EQ(::send(client.get(), "x", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(::recv(server.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
}

TEST(Network, FindsListeningSockets) {
  const launch::LoopbackSocket socket = launch::listen_on_loopback({});
  const launch::FileDescriptor other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::vector<int> found = detail::listening_sockets();
  EXPECT_EQ(std::count(found.begin(), found.end(), socket.fd.get()), 1);
  EXPECT_EQ(std::count(found.begin(), found.end(), other.get()), 0);
}

}  // namespace
}  // namespace sherd::test
