#include "net/url.h"

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
                 {"is no URL of a server: give one like https://host/path"});
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
  refused("http://", "to what is no URL");
}

TEST(Url, ShowsNoSecrets) {
  EXPECT_EQ(shown("https://me:secret@a.example:8080/x?signature=secret#secret"),
            "https://a.example:8080/x");
  EXPECT_EQ(shown("no url?secret"), "no url");
}

TEST(Url, EscapesWhatWouldEndASegment) {
  EXPECT_EQ(escaped("a/b ?#%é"), "a%2Fb%20%3F%23%25%C3%A9");
  EXPECT_EQ(escaped(""), "");
}

}  // namespace
}  // namespace sherd::net
