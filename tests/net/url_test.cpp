#include "net/url.h"

#include <map>

#include "tests/support/expect_error.h"

namespace sherd::net {
namespace {

using test::expect_error;

TEST(Url, AnOriginIsSchemeHostAndPort) {
  EXPECT_EQ(origin_of("https://Hub.example/a/b?c=d"), "https://hub.example:443");
  EXPECT_EQ(origin_of("http://me:secret@127.0.0.1:8080/"), "http://127.0.0.1:8080");
  EXPECT_EQ(origin_of("http://[::1]:80"), origin_of("http://[::1]/x"));
  EXPECT_NE(origin_of("http://a.example"), origin_of("http://a.example:81"));
  EXPECT_NE(origin_of("http://a.example"), origin_of("https://a.example"));
  EXPECT_NE(origin_of("http://a.example@b.example"), origin_of("http://a.example"));
}

TEST(Url, RefusesWhatIsNoServer) {
  for (const char* const url : {"", "file:///etc/passwd", "huggingface.co", "http://", "a b"}) {
    expect_error([&] { static_cast<void>(origin_of(url)); }, ExitCode::Usage,
                 {"is not the URL of a server: give one like https://host/path"});
  }
}

TEST(Url, RedirectsAreRelativeOrAbsolute) {
  EXPECT_EQ(redirected("http://a.example/x/y?z", "/other"), "http://a.example/other");
  EXPECT_EQ(redirected("http://a.example/x/y", "w"), "http://a.example/x/w");
  EXPECT_EQ(redirected("http://a.example/x", "https://b.example/y?q=1"), "https://b.example/y?q=1");
  EXPECT_EQ(redirected("http://a.example/x", "//b.example/y"), "http://b.example/y");
}

TEST(Url, RefusesRedirectsThatLeadAstray) {
  const auto refused = [](const std::string& location, const std::string& why) {
    expect_error([&] { static_cast<void>(redirected("https://a.example/x?secret", location)); },
                 ExitCode::Unavailable, {"https://a.example/x: the server redirects", why});
  };
  refused("http://a.example/x", "from https to http");
  refused("file:///etc/passwd", "the scheme 'file'");
  refused("http://", "to something that is not a URL");
}

TEST(Url, ShowsNoSecrets) {
  EXPECT_EQ(shown("https://me:secret@a.example:8080/x?signature=secret#secret"),
            "https://a.example:8080/x");
  EXPECT_EQ(shown("no url?secret"), "no url");
}

TEST(Url, ShowsNoPasswordOfWhatIsNone) {
  EXPECT_EQ(shown("http://me:can/ary@host"), "http://host");
  EXPECT_EQ(shown("http://me:canary@host:500000"), "http://host:500000");
  EXPECT_EQ(shown("http://me:ca nary@host"), "http://host");
  EXPECT_EQ(shown("http://me:can?ary@host/x?canary"), "http://host/x");
  EXPECT_EQ(shown("http://me:canary"), "http://me");
  EXPECT_EQ(shown("me:ca nary@host"), "host");
  EXPECT_EQ(shown("http://"), "http://");
  EXPECT_EQ(shown("a b\x1b[2J"), "a b?[2J");
}

TEST(Url, WhatAServerSaysIsFitForATerminal) {
  EXPECT_EQ(printable("a\x1b[31m\r\nb\x7f"), "a?[31m??b?");
  EXPECT_EQ(printable("naïve"), "naïve");
  EXPECT_LT(printable(std::string(10'000, 'x')).size(), 500U);
}

TEST(Url, HttpIsOpenToOthersUnlessItStaysHere) {
  std::map<std::string, std::string> variables;
  const auto is_open = [&](const std::string& url) {
    return is_open_to_others(url, [&](const std::string& name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  };
  for (const char* const url : {"https://hub.example", "http://127.0.0.1:80", "http://[::1]:5",
                                "http://localhost/x", "http://127.1.2.3"}) {
    EXPECT_FALSE(is_open(url)) << url;
  }
  for (const char* const url : {"http://hub.example", "http://127.0.0.1.evil.example",
                                "http://128.0.0.1", "http://127.0.0.1@evil.example"}) {
    EXPECT_TRUE(is_open(url)) << url;
  }
  variables["http_proxy"] = "http://proxy.example";
  EXPECT_TRUE(is_open("http://127.0.0.1"));
  EXPECT_FALSE(is_open("https://hub.example"));
  variables["NO_PROXY"] = "example.org,127.0.0.1";
  EXPECT_FALSE(is_open("http://127.0.0.1"));
  EXPECT_TRUE(is_open("http://localhost"));
  variables = {{"ALL_PROXY", "socks5://proxy.example"}};
  EXPECT_TRUE(is_open("http://localhost"));
}

TEST(Url, EscapesWhatWouldEndASegment) {
  EXPECT_EQ(escaped("a/b ?#%é"), "a%2Fb%20%3F%23%25%C3%A9");
  EXPECT_EQ(escaped(""), "");
}

}  // namespace
}  // namespace sherd::net
