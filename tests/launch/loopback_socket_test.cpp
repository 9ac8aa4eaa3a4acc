#include "launch/loopback_socket.h"

#include <string>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/error.h"

namespace sherd::launch {
namespace {

using ::testing::HasSubstr;

TEST(LoopbackSocket, ListensOnLoopbackAlone) {
  const LoopbackSocket socket = listen_on_loopback(std::nullopt);
  EXPECT_GT(socket.port, 0);
  sockaddr_in address{};
  socklen_t length = sizeof address;
  ASSERT_EQ(::getsockname(socket.fd.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  EXPECT_EQ(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK);
  EXPECT_EQ(ntohs(address.sin_port), socket.port);
}

TEST(LoopbackSocket, RefusesAPortInUse) {
  const LoopbackSocket first = listen_on_loopback(std::nullopt);
  try {
    static_cast<void>(listen_on_loopback(first.port));
    FAIL() << "bound twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Unavailable);
    EXPECT_THAT(error.what(), HasSubstr("cannot listen on 127.0.0.1 port " +
                                        std::to_string(first.port) + ": Address already in use"));
    EXPECT_THAT(error.what(), HasSubstr("Give another --port"));
  }
}

TEST(LoopbackSocket, TakesAPortJustGivenBack) {
  std::uint16_t port = 0;
  {
    const LoopbackSocket first = listen_on_loopback(std::nullopt);
    port = first.port;
  }
  EXPECT_EQ(listen_on_loopback(port).port, port);
}

}  // namespace
}  // namespace sherd::launch
