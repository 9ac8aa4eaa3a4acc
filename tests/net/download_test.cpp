// Files that arrive whole, in parts, again, or not.

#include "net/http.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace sherd::net {
namespace {

using test::Answer;
using test::Asked;
using test::bytes_of;
using test::expect_error;
using test::HttpServer;
using test::TempFolder;

std::string content() {
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) {
    bytes += static_cast<char>(i * i % 251);
  }
  return bytes;
}

TEST(Download, WritesAFileAndTellsHowFarItIs) {
  const HttpServer server([](const Asked&) { return Answer{200, content()}; });
  const TempFolder folder;
  Client client;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  const Response response = client.download({.url = server.url()}, folder.path() / "file",
                                            [&](std::uint64_t done_bytes, std::uint64_t bytes) {
                                              EXPECT_GT(done_bytes, done);
                                              done = done_bytes;
                                              total = bytes;
                                            });
  EXPECT_TRUE(response.ok());
  EXPECT_EQ(response.body, "");
  EXPECT_EQ(bytes_of(folder.path() / "file"), content());
  EXPECT_EQ(done, content().size());
  EXPECT_EQ(total, content().size());
}

TEST(Download, GoesOnWhereTheConnectionBroke) {
  const HttpServer server([tries = 0](const Asked&) mutable {
    ++tries;
    return Answer{200,
                  content(),
                  {},
                  tries == 1   ? 30'000
                  : tries == 2 ? 70'000
                               : std::string::npos};
  });
  const TempFolder folder;
  Client client;
  EXPECT_TRUE(client.download({.url = server.url()}, folder.path() / "file").ok());
  EXPECT_EQ(bytes_of(folder.path() / "file"), content());
  ASSERT_EQ(server.asked().size(), 3U);
  EXPECT_EQ(server.asked()[0].header("Range"), "");
  EXPECT_EQ(server.asked()[1].header("Range"), "bytes=30000-");
  EXPECT_EQ(server.asked()[2].header("Range"), "bytes=70000-");
}

TEST(Download, GoesOnFromWhatAnEarlierOneLeft) {
  const HttpServer server([](const Asked&) { return Answer{200, content()}; });
  const TempFolder folder;
  const auto file = folder.write("file", content().substr(0, 99'000));
  Client client;
  std::uint64_t total = 0;
  EXPECT_TRUE(client
                  .download({.url = server.url()}, file,
                            [&](std::uint64_t, std::uint64_t bytes) { total = bytes; })
                  .ok());
  EXPECT_EQ(bytes_of(file), content());
  EXPECT_EQ(server.asked().at(0).header("Range"), "bytes=99000-");
  EXPECT_EQ(total, content().size());
}

TEST(Download, StartsOverWhereTheServerSendsAll) {
  // A status of its own keeps the server from looking at the range.
  const HttpServer server([](const Asked& asked) {
    return asked.path == "/empty" ? Answer{203, ""} : Answer{203, content()};
  });
  const TempFolder folder;
  Client client;
  const auto file = folder.write("file", "something else");
  EXPECT_TRUE(client.download({.url = server.url() + "/empty"}, file).ok());
  EXPECT_EQ(bytes_of(file), "");
  folder.write("file", "something else");
  EXPECT_TRUE(client.download({.url = server.url()}, file).ok());
  EXPECT_EQ(bytes_of(file), content());
}

TEST(Download, StartsOverWhereThereIsNoSuchRest) {
  const HttpServer server([](const Asked& asked) {
    return asked.header("Range").empty() ? Answer{200, "short"} : Answer{416, "no such range"};
  });
  const TempFolder folder;
  Client client;
  const auto file = folder.write("file", "longer than it is");
  EXPECT_TRUE(client.download({.url = server.url()}, file).ok());
  EXPECT_EQ(bytes_of(file), "short");
}

TEST(Download, RefusesAnotherRestThanItAskedFor) {
  const HttpServer server([](const Asked&) {
    return Answer{206, "x", {{"Content-Range", "bytes 7-7/8"}}};
  });
  const TempFolder folder;
  Client client;
  const auto file = folder.write("file", "abc");
  expect_error([&] { static_cast<void>(client.download({.url = server.url()}, file)); },
               ExitCode::Unavailable, {"asked for bytes from 3 on", "bytes 7-7/8"});
  EXPECT_EQ(bytes_of(file), "abc");
}

TEST(Download, AnAnswerThatIsNoFileStaysOutOfIt) {
  const HttpServer server([](const Asked&) { return Answer{403, "not for you"}; });
  const TempFolder folder;
  Client client;
  const auto file = folder.write("file", "begun");
  const Response response = client.download({.url = server.url()}, file);
  EXPECT_EQ(response.status, 403);
  EXPECT_EQ(response.body, "not for you");
  EXPECT_EQ(bytes_of(file), "begun");
}

TEST(Download, AsksABusyServerAgain) {
  const HttpServer server([tries = 0](const Asked&) mutable {
    return ++tries < 3 ? Answer{503, "busy"} : Answer{200, "bytes"};
  });
  const TempFolder folder;
  Client client;
  EXPECT_TRUE(client.download({.url = server.url()}, folder.path() / "file").ok());
  EXPECT_EQ(bytes_of(folder.path() / "file"), "bytes");
}

TEST(Download, SaysWhereItCannotWrite) {
  const HttpServer server([](const Asked&) { return Answer{200, "x"}; });
  Client client;
  expect_error(
      [&] { static_cast<void>(client.download({.url = server.url()}, "/no/such/folder/file")); },
      ExitCode::CannotWrite, {"/no/such/folder/file", "No such file or directory"});
  expect_error([&] { static_cast<void>(client.download({.url = server.url()}, "/dev/full")); },
               ExitCode::StorageIo, {"/dev/full: writing failed: No space left on device"});
}

}  // namespace
}  // namespace sherd::net
