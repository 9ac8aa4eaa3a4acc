#include "net/url.h"

#include <algorithm>
#include <array>
#include <memory>
#include <sstream>

#include <curl/curl.h>

#include "sherd/error.h"

namespace sherd::net {
namespace {

using Url = std::unique_ptr<CURLU, void (*)(CURLU*)>;

std::optional<Url> parsed(const std::string& text) {
  Url url(curl_url(), curl_url_cleanup);
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK) {
    return std::nullopt;
  }
  return url;
}

std::string part(const Url& url, CURLUPart which, unsigned int flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), which, &text, flags) != CURLUE_OK) {
    return "";
  }
  const std::unique_ptr<char, void (*)(void*)> owner(text, curl_free);
  return text;
}

bool is_http(const std::string& scheme) {
  return scheme == "http" || scheme == "https";
}

// The text after the last @, since a password may contain anything else; without an @, only what
// could be a host's name.
std::string shown_of_no_url(const std::string& text) {
  const std::size_t mark = text.find("://");
  const std::size_t begin = mark == std::string::npos ? 0 : mark + 3;
  const std::string scheme =
      text.substr(0, begin).find('@') == std::string::npos ? text.substr(0, begin) : "";
  const std::size_t at = text.rfind('@');
  const std::string rest = at == std::string::npos ? text.substr(begin) : text.substr(at + 1);
  return scheme + rest.substr(0, rest.find_first_of(at == std::string::npos ? "?#:" : "?#"));
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "[::1]" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

bool has_proxy(const Lookup& variable) {
  constexpr std::array kNames{"http_proxy", "all_proxy", "ALL_PROXY"};  // of libcurl, for http
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](const char* name) { return !variable(name).value_or("").empty(); });
}

// Of what NO_PROXY may say only what leaves no doubt.
bool is_without_proxy(const std::string& host, const Lookup& variable) {
  std::string names = variable("no_proxy").value_or("");
  names = names.empty() ? variable("NO_PROXY").value_or("") : names;
  std::replace(names.begin(), names.end(), ',', ' ');
  std::istringstream words(names);
  for (std::string name; words >> name;) {
    if (name == host || names == "*") {
      return true;
    }
  }
  return false;
}

std::string origin_of_parts(const Url& url) {
  std::string host = part(url, CURLUPART_HOST);
  for (char& letter : host) {
    letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  }
  return part(url, CURLUPART_SCHEME) + "://" + host + ":" +
         part(url, CURLUPART_PORT, CURLU_DEFAULT_PORT);
}

}  // namespace

std::string origin_of(const std::string& url) {
  const auto parts = parsed(url);
  if (!parts || !is_http(part(*parts, CURLUPART_SCHEME))) {
    throw Error(ExitCode::Usage,
                "'" + shown(url) + "' is not the URL of a server: give one like https://host/path");
  }
  return origin_of_parts(*parts);
}

std::string redirected(const std::string& url, const std::string& location) {
  auto parts = parsed(url);
  const auto refuse = [&](const std::string& why) -> Error {
    return {ExitCode::Unavailable,
            shown(url) + ": the server redirects " + why +
                ". Ask whoever runs it, or check the proxy variables (https_proxy)"};
  };
  const bool was_https = parts && part(*parts, CURLUPART_SCHEME) == "https";
  if (!parts || curl_url_set(parts->get(), CURLUPART_URL, location.c_str(),
                             CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK) {
    throw refuse("to something that is not a URL");
  }
  const std::string scheme = part(*parts, CURLUPART_SCHEME);
  if (!is_http(scheme)) {
    throw refuse("to a URL of the scheme '" + scheme + "'");
  }
  if (was_https && scheme == "http") {
    throw refuse("from https to http, which is not encrypted");
  }
  return part(*parts, CURLUPART_URL);
}

std::string shown(const std::string& url) {
  const auto parts = parsed(url);
  if (!parts) {
    return printable(shown_of_no_url(url));
  }
  const std::string port = part(*parts, CURLUPART_PORT);
  return part(*parts, CURLUPART_SCHEME) + "://" + part(*parts, CURLUPART_HOST) +
         (port.empty() ? "" : ":" + port) + part(*parts, CURLUPART_PATH);
}

std::string printable(const std::string& text) {
  constexpr std::size_t kMostBytes = 400;
  std::string clean = text.substr(0, kMostBytes);
  std::replace_if(
      clean.begin(), clean.end(),
      [](unsigned char letter) { return letter < 0x20 || letter == 0x7f; }, '?');
  return clean + (text.size() > kMostBytes ? "…" : "");
}

bool is_open_to_others(
    const std::string& url,
    const std::function<std::optional<std::string>(const std::string& name)>& variable) {
  const auto parts = parsed(url);
  if (!parts || part(*parts, CURLUPART_SCHEME) != "http") {
    return false;
  }
  const std::string host = part(*parts, CURLUPART_HOST);
  return !is_loopback(host) || (has_proxy(variable) && !is_without_proxy(host, variable));
}

std::string escaped(const std::string& text) {
  if (text.empty()) {
    return "";  // libcurl takes a length of 0 for one to be found out
  }
  const std::unique_ptr<char, void (*)(void*)> owner(
      curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())), curl_free);
  return owner == nullptr ? "" : owner.get();
}

}  // namespace sherd::net
