#include "net/url.h"

#include <memory>
#include <optional>

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
                "'" + shown(url) + "' is no URL of a server: give one like https://host/path");
  }
  return origin_of_parts(*parts);
}

std::string redirected(const std::string& url, const std::string& location) {
  auto parts = parsed(url);
  const auto refuse = [&](const std::string& why) -> Error {
    return {ExitCode::Unavailable, shown(url) + ": the server redirects " + why +
                                       ". Ask whoever runs it, or look at the proxy's variables "
                                       "(https_proxy)"};
  };
  const bool was_https = parts && part(*parts, CURLUPART_SCHEME) == "https";
  if (!parts || curl_url_set(parts->get(), CURLUPART_URL, location.c_str(),
                             CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK) {
    throw refuse("to what is no URL");
  }
  const std::string scheme = part(*parts, CURLUPART_SCHEME);
  if (!is_http(scheme)) {
    throw refuse("to a URL of the scheme '" + scheme + "'");
  }
  if (was_https && scheme == "http") {
    throw refuse("from https to http, where others could read along");
  }
  return part(*parts, CURLUPART_URL);
}

std::string shown(const std::string& url) {
  const auto parts = parsed(url);
  if (!parts) {
    return url.substr(0, url.find_first_of("?#@"));
  }
  const std::string port = part(*parts, CURLUPART_PORT);
  return part(*parts, CURLUPART_SCHEME) + "://" + part(*parts, CURLUPART_HOST) +
         (port.empty() ? "" : ":" + port) + part(*parts, CURLUPART_PATH);
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
