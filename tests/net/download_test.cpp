// Files that arrive whole, in parts, again, or not.

#include <csignal>
#include <filesystem>

#include <sys/resource.h>
#include <sys/stat.h>

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

constexpr std::chrono::milliseconds kNoPause{1};
const std::vector<Header> kClose{{"Connection", "close"}};  // else the test's server waits a second

std::string content() {
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) {
    bytes += static_cast<char>(i * i % 251);
  }
  return bytes;
}

// Sets the largest size of a file, and returns what it was.
rlimit limit_files(rlimit limit) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  limit.rlim_max = before.rlim_max;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  return before;
}

TEST(Download, WritesAFileAndTellsHowFarItIs) {
  const HttpServer server([](const Asked&) { return Answer{200, content()}; });
  const TempFolder folder;
  Client client;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  const Response response = client.download({.url = server.url()}, folder.path() / "file", {},
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
                  .download({.url = server.url()}, file, content().size(),
                            [&](std::uint64_t, std::uint64_t bytes) { total = bytes; })
                  .ok());
  EXPECT_EQ(bytes_of(file), content());
  EXPECT_EQ(server.asked().at(0).header("Range"), "bytes=99000-");
  EXPECT_EQ(total, content().size());
}

TEST(Download, PassesOverWhatIsThereOfAServerThatSendsAll) {
  const HttpServer server(
      [](const Asked&) { return Answer{.body = content(), .ignores_range = true}; });
  const TempFolder folder;
  Client client;
  const auto file = folder.write("file", content().substr(0, 60'000));
  EXPECT_TRUE(client.download({.url = server.url()}, file, content().size()).ok());
  EXPECT_EQ(server.asked().at(0).header("Range"), "bytes=60000-");
  EXPECT_EQ(bytes_of(file), content());
}

TEST(Download, AFileThatTurnedOutShorterStartsOver) {
  const HttpServer server([](const Asked&) { return Answer{.body = "", .ignores_range = true}; });
  const TempFolder folder;
  Client client;
  const auto file = folder.write("file", "something else");
  EXPECT_TRUE(client.download({.url = server.url()}, file).ok());
  EXPECT_EQ(bytes_of(file), "");
}

// Of a request for a rest, its first byte.
std::size_t begin_of_range(const Asked& asked) {
  const std::string range = asked.header("Range");
  return range.empty() ? 0 : std::stoul(range.substr(6));
}

TEST(Download, WhatEndsShortIsNotWhole) {
  const HttpServer parts([](const Asked& asked) {
    const std::size_t begin = begin_of_range(asked);
    const std::string part = content().substr(begin, 30'000);
    return Answer{206,
                  part,
                  {{"Content-Range", "bytes " + std::to_string(begin) + "-" +
                                         std::to_string(begin + part.size() - 1) + "/" +
                                         std::to_string(content().size())}}};
  });
  const HttpServer no_length([tries = 0](const Asked&) mutable {
    return Answer{.body = content(),
                  .cut_after_bytes = ++tries == 1 ? 40'000 : std::string::npos,
                  .says_no_length = true};
  });
  const TempFolder folder;
  Client client;
  const auto file = folder.path() / "file";
  EXPECT_TRUE(client.download({.url = parts.url(), .first_pause = kNoPause}, file).ok());
  EXPECT_EQ(bytes_of(file), content());
  EXPECT_EQ(parts.asked().size(), 4U);
  const auto other = folder.path() / "other";
  EXPECT_TRUE(client
                  .download({.url = no_length.url(), .headers = kClose, .first_pause = kNoPause},
                            other, content().size())
                  .ok());
  EXPECT_EQ(bytes_of(other), content());
  EXPECT_EQ(no_length.asked().size(), 2U);
}

TEST(Download, EndsWhereTheFileGetsNoLonger) {
  const HttpServer cuts([tries = 0](const Asked&) mutable {
    const std::size_t at = ++tries % 3 == 0 ? 20'000 : tries % 3 == 1 ? 10'000 : 15'000;
    return Answer{.body = content(), .cut_after_bytes = at, .ignores_range = true};
  });
  const HttpServer no_ranges([](const Asked& asked) {
    return begin_of_range(asked) > 0 ? Answer{416, "no such range"}
                                     : Answer{.body = content(), .cut_after_bytes = 10'000};
  });
  const HttpServer short_ones([](const Asked&) {
    return Answer{.body = content().substr(0, 500), .says_no_length = true};
  });
  const TempFolder folder;
  Client client;
  for (const HttpServer* server : {&cuts, &no_ranges, &short_ones}) {
    const auto file = folder.path() / ("file" + server->url().substr(17));
    expect_error(
        [&] {
          static_cast<void>(
              client.download({.url = server->url(), .headers = kClose, .first_pause = kNoPause},
                              file, content().size()));
        },
        ExitCode::Unavailable, {server->url()});
    EXPECT_LE(server->asked().size(), 12U);
  }
}

TEST(Download, ADifferentSizeIsRefusedBeforeTheFileIsTouched) {
  const HttpServer server([](const Asked& asked) {
    return asked.path == "/page"     ? Answer{.body = "<html>log in</html>", .ignores_range = true}
           : asked.path == "/longer" ? Answer{.body = content() + "more"}
           : asked.path == "/none"   ? Answer{416, "", {{"Content-Range", "bytes */77"}}}
                                     : Answer{.body = content() + "more", .says_no_length = true};
  });
  const TempFolder folder;
  Client client;
  const auto begun = content().substr(0, 70'000);
  const auto file = folder.write("file", begun);
  const auto refused = [&](const std::string& path, const std::string& why) {
    expect_error(
        [&] {
          static_cast<void>(client.download({.url = server.url() + path}, file, content().size()));
        },
        ExitCode::BadData, {server.url() + path, why});
  };
  refused("/page", "has 19 bytes, not the 100000 that were announced");
  refused("/longer", "has 100004 bytes");
  refused("/none", "has 77 bytes");
  EXPECT_EQ(bytes_of(file), begun);
  refused("/unsaid", "the server sends more than the 100000");
}

TEST(Download, AsksNothingOfAFileThatIsThere) {
  const HttpServer server([](const Asked&) { return Answer{}; });
  const TempFolder folder;
  Client client;
  const auto file = folder.write("file", content());
  EXPECT_TRUE(client.download({.url = server.url()}, file, content().size()).ok());
  EXPECT_TRUE(server.asked().empty());
}

TEST(Download, GoesOnAfterAStall) {
  const HttpServer server([tries = 0](const Asked&) mutable {
    return ++tries > 1 ? Answer{.body = content()}
                       : Answer{.body = content(),
                                .cut_after_bytes = 30'000,
                                .stall = std::chrono::milliseconds(4000)};
  });
  const TempFolder folder;
  Client client;
  EXPECT_TRUE(client
                  .download({.url = server.url(),
                             .stall_timeout = std::chrono::seconds(1),
                             .first_pause = kNoPause},
                            folder.path() / "file")
                  .ok());
  EXPECT_EQ(bytes_of(folder.path() / "file"), content());
  EXPECT_EQ(server.asked().at(1).header("Range"), "bytes=30000-");
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

TEST(Download, MakesTheFileWithItsFirstByte) {
  const HttpServer server([](const Asked& asked) {
    return asked.path == "/empty" ? Answer{200, ""} : Answer{404, "gone"};
  });
  const TempFolder folder;
  Client client;
  const auto file = folder.path() / "file";
  EXPECT_EQ(client.download({.url = server.url() + "/gone"}, file).status, 404);
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_TRUE(client.download({.url = server.url() + "/empty"}, file).ok());
  EXPECT_EQ(bytes_of(file), "");
}

TEST(Download, WritesToNothingButAFile) {
  const HttpServer server([](const Asked&) { return Answer{200, "x"}; });
  const TempFolder folder;
  const auto other = folder.write("other", "precious");
  std::filesystem::create_symlink(other, folder.path() / "link");
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  Client client;
  for (const char* const name : {"link", "pipe", "."}) {
    expect_error(
        [&] { static_cast<void>(client.download({.url = server.url()}, folder.path() / name)); },
        ExitCode::CannotWrite, {(folder.path() / name).string()});
  }
  EXPECT_EQ(bytes_of(other), "precious");
  EXPECT_TRUE(server.asked().empty());
}

TEST(Download, SaysWhereItCannotWrite) {
  const HttpServer server([](const Asked&) { return Answer{200, content()}; });
  Client client;
  expect_error(
      [&] { static_cast<void>(client.download({.url = server.url()}, "/no/such/folder/file")); },
      ExitCode::CannotWrite, {"/no/such/folder/file", "No such file or directory"});
  const TempFolder folder;
  const rlimit before = limit_files({1000, RLIM_INFINITY});
  expect_error(
      [&] { static_cast<void>(client.download({.url = server.url()}, folder.path() / "file")); },
      ExitCode::StorageIo, {"file: writing failed: File too large"});
  limit_files(before);
}

}  // namespace
}  // namespace sherd::net
