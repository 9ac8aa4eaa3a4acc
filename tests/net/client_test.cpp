// A client and servers on loopback: requests, answers, redirects, faults.

#include <thread>

#include "net/http.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"
#include "tests/support/temp_folder.h"

namespace sherd::net {
namespace {

using test::Answer;
using test::Asked;
using test::expect_error;
using test::HttpServer;
using testing::HasSubstr;

constexpr const char* kSecret = "Bearer hf_canary";

TEST(HttpClient, SendsARequestAndReadsTheAnswer) {
  const HttpServer server([](const Asked&) {
    return Answer{201, "made", {{"X-Thing", " of value "}}};
  });
  Client client;
  const Response response = client.send({.method = "POST",
                                         .url = server.url() + "/things?a=b",
                                         .headers = {{"Content-Type", "application/json"}},
                                         .authorization = kSecret,
                                         .body = R"({"a": 1})"});
  EXPECT_EQ(response.status, 201);
  EXPECT_TRUE(response.ok());
  EXPECT_EQ(response.body, "made");
  EXPECT_EQ(response.header("x-thing"), "of value");
  EXPECT_EQ(response.header("x-other"), "");
  const Asked asked = server.asked().at(0);
  EXPECT_EQ(asked.method, "POST");
  EXPECT_EQ(asked.target, "/things?a=b");
  EXPECT_EQ(asked.header("Content-Type"), "application/json");
  EXPECT_EQ(asked.header("Authorization"), kSecret);
  EXPECT_THAT(asked.header("User-Agent"), HasSubstr("sherd/"));
  EXPECT_EQ(asked.body, R"({"a": 1})");
}

TEST(HttpClient, AnyStatusIsAnAnswer) {
  const HttpServer server([](const Asked& asked) {
    return Answer{asked.path == "/gone" ? 404 : 503, "why"};
  });
  Client client;
  EXPECT_EQ(client.send({.url = server.url() + "/gone"}).status, 404);
  const Response busy = client.send({.method = "POST", .url = server.url() + "/busy"});
  EXPECT_EQ(busy.status, 503);
  EXPECT_EQ(busy.body, "why");
}

TEST(HttpClient, ARequestLeavesNothingToTheNext) {
  const HttpServer server([](const Asked&) { return Answer{}; });
  Client client;
  static_cast<void>(client.send({.method = "PUT",
                                 .url = server.url(),
                                 .headers = {{"X-Once", "1"}},
                                 .authorization = kSecret,
                                 .body = "body"}));
  static_cast<void>(client.send({.url = server.url()}));
  const Asked second = server.asked().at(1);
  EXPECT_EQ(second.method, "GET");
  EXPECT_EQ(second.header("X-Once") + second.header("Authorization") + second.body, "");
}

TEST(HttpClient, NoOtherHostOfARedirectGetsTheToken) {
  const HttpServer storage([](const Asked&) { return Answer{200, "bytes"}; }, "127.0.0.2");
  const HttpServer other_port([&](const Asked&) {
    return Answer{302, "", {{"Location", storage.url() + "/stored"}}};
  });
  const HttpServer hub([&](const Asked& asked) {
    return asked.path == "/here" ? Answer{307, "", {{"Location", other_port.url() + "/there"}}}
                                 : Answer{301, "moved", {{"Location", "/here"}}};
  });
  Client client;
  const Response response = client.send({.url = hub.url() + "/file", .authorization = kSecret});
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "bytes");
  EXPECT_EQ(response.url, storage.url() + "/stored");
  ASSERT_EQ(hub.asked().size(), 2U);
  EXPECT_EQ(hub.asked()[0].header("Authorization"), kSecret);
  EXPECT_EQ(hub.asked()[1].header("Authorization"), kSecret);  // the same origin
  for (const HttpServer* server : {&other_port, &storage}) {
    const std::vector<Asked> asked = server->asked();
    ASSERT_EQ(asked.size(), 1U);
    for (const auto& [name, value] : asked[0].headers) {
      EXPECT_THAT(value, testing::Not(HasSubstr("canary"))) << name;
    }
  }
}

TEST(HttpClient, FollowsNoRedirectOfAPost) {
  const HttpServer server([](const Asked&) { return Answer{302, "", {{"Location", "/x"}}}; });
  Client client;
  EXPECT_EQ(client.send({.method = "POST", .url = server.url(), .body = "x"}).status, 302);
  EXPECT_EQ(server.asked().size(), 1U);
}

TEST(HttpClient, EndsARoundOfRedirects) {
  const HttpServer server([](const Asked&) { return Answer{302, "", {{"Location", "/x"}}}; });
  Client client;
  expect_error([&] { static_cast<void>(client.send({.url = server.url() + "/a?secret"})); },
               ExitCode::Unavailable, {server.url() + "/a: more than 10 redirects"});
}

TEST(HttpClient, BoundsTheAnswer) {
  const HttpServer server([](const Asked&) { return Answer{200, std::string(2000, 'x')}; });
  Client client;
  expect_error(
      [&] { static_cast<void>(client.send({.url = server.url(), .max_body_bytes = 1000})); },
      ExitCode::Unavailable, {server.url(), "the answer has more than 1000 bytes"});
}

TEST(HttpClient, SaysWhenThereIsNobodyAndNamesNoSecret) {
  std::string url;
  {
    const HttpServer gone([](const Asked&) { return Answer{}; });
    url = gone.url();
  }
  const std::string with_secrets = "http://me:canary@" + url.substr(7) + "/x?key=canary";
  try {
    Client client;
    static_cast<void>(client.send({.url = with_secrets, .authorization = kSecret}));
    FAIL() << "an answer of nobody";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::Unavailable);
    EXPECT_THAT(error.what(), HasSubstr(url + "/x: "));
    EXPECT_THAT(error.what(), HasSubstr("https_proxy"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("canary")));
  }
}

TEST(HttpClient, GivesUpOnASlowServer) {
  const HttpServer server([](const Asked&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    return Answer{};
  });
  Client client;
  expect_error(
      [&] {
        static_cast<void>(
            client.send({.url = server.url(), .timeout = std::chrono::milliseconds(200)}));
      },
      ExitCode::Unavailable, {server.url(), "timed out"});
}

TEST(HttpClient, AsksABusyServerAgain) {
  const HttpServer server([tries = 0](const Asked&) mutable {
    return ++tries % 3 == 0 ? Answer{200, "here"} : Answer{503, "busy"};
  });
  constexpr std::chrono::milliseconds kPause{1};
  Client client;
  Request request{.url = server.url(), .tries = 3, .first_pause = kPause};
  EXPECT_EQ(client.send(request).body, "here");
  request.tries = 2;
  EXPECT_EQ(client.send(request).status, 503);  // the fourth and the fifth
  request.tries = 3;
  request.method = "POST";
  EXPECT_EQ(client.send(request).status, 200);  // the sixth
  EXPECT_EQ(client.send(request).status, 503);  // is not repeated
  EXPECT_EQ(server.asked().size(), 7U);
}

TEST(HttpClient, AsksAgainWhereTheConnectionBroke) {
  const HttpServer server([tries = 0](const Asked&) mutable {
    return Answer{.body = std::string(1000, 'x'),
                  .cut_after_bytes = ++tries == 1 ? 10U : std::string::npos};
  });
  Client client;
  const Request once{.url = server.url()};
  expect_error([&] { static_cast<void>(client.send(once)); }, ExitCode::Unavailable,
               {server.url()});
  const HttpServer other([tries = 0](const Asked&) mutable {
    return Answer{.body = std::string(1000, 'x'),
                  .cut_after_bytes = ++tries == 1 ? 10U : std::string::npos};
  });
  const Response response =
      client.send({.url = other.url(), .tries = 2, .first_pause = std::chrono::milliseconds(1)});
  EXPECT_EQ(response.body, std::string(1000, 'x'));
}

TEST(HttpClient, WaitsAsLongAsTheServerSaysUpToALimit) {
  const HttpServer server([tries = 0](const Asked& asked) mutable {
    return asked.path == "/long" ? Answer{429, "", {{"Retry-After", "3600"}}}
           : ++tries > 1         ? Answer{200, "here"}
                                 : Answer{503, "", {{"Retry-After", "2"}}};
  });
  Client client;
  std::chrono::milliseconds told{0};
  Request request{.url = server.url(),
                  .tries = 3,
                  .first_pause = std::chrono::milliseconds(1),
                  .on_pause = [&](std::chrono::milliseconds pause) { told = pause; }};
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(client.send(request).body, "here");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  EXPECT_EQ(told, std::chrono::seconds(2));
  request.url += "/long";
  EXPECT_EQ(client.send(request).status, 429);
  EXPECT_EQ(server.asked().size(), 3U);
}

TEST(HttpClient, RefusesHeadersThatWouldBecomeTwo) {
  Client client;
  expect_error(
      [&] {
        static_cast<void>(client.send(
            {.url = "http://127.0.0.1:9", .authorization = "Bearer x\r\nX-Other: canary"}));
      },
      ExitCode::Usage, {"the HTTP header 'Authorization'", "control character"});
}

TEST(HttpClient, QuotesNoProxyOfTheEnvironment) {
  ::setenv("http_proxy", "nonsense://me:canary@proxy", 1);
  Client client;
  try {
    static_cast<void>(client.send({.url = "http://no.such.host.invalid/x"}));
    ADD_FAILURE() << "an answer of nobody";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("canary")));
  }
  ::unsetenv("http_proxy");
}

TEST(HttpClient, UsesTheProxyOfTheEnvironment) {
  const HttpServer proxy([](const Asked&) { return Answer{200, "by proxy"}; });
  ::setenv("http_proxy", proxy.url().c_str(), 1);
  Client client;
  const Response response = client.send({.url = "http://no.such.host.invalid/x"});
  ::unsetenv("http_proxy");
  EXPECT_EQ(response.body, "by proxy");
  EXPECT_EQ(proxy.asked().at(0).target, "http://no.such.host.invalid/x");
}

}  // namespace
}  // namespace sherd::net
