#include "net/exchange.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <utility>

#include "net/url.h"
#include "sherd/error.h"

namespace sherd::net {
namespace {

constexpr int kMostRedirects = 10;

// What libcurl's callbacks write to.
struct Reading {
  CURL* curl = nullptr;
  const Request* request = nullptr;
  const TakePiece* take = nullptr;
  Response response;
  std::exception_ptr fault;
};

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  const auto last = text.find_last_not_of(" \t\r\n");
  return first == std::string_view::npos ? "" : std::string(text.substr(first, last - first + 1));
}

size_t on_header(char* data, size_t one, size_t count, void* to) {
  auto& reading = *static_cast<Reading*>(to);
  const std::string_view line(data, one * count);
  const size_t colon = line.find(':');
  if (line.starts_with("HTTP/")) {
    reading.response.headers.clear();  // of an interim answer, or of a proxy's
  } else if (colon != std::string_view::npos) {
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    reading.response.headers[name] = trimmed(line.substr(colon + 1));
  }
  return line.size();
}

void keep(Reading& reading, std::string_view piece) {
  std::string& body = reading.response.body;
  if (body.size() + piece.size() > reading.request->max_body_bytes) {
    throw Error(ExitCode::Unavailable, shown(reading.request->url) + ": the answer has more than " +
                                           std::to_string(reading.request->max_body_bytes) +
                                           " bytes. Is this the right server?");
  }
  body.append(piece);
}

size_t on_body(char* data, size_t one, size_t count, void* to) {
  auto& reading = *static_cast<Reading*>(to);
  const std::string_view piece(data, one * count);
  long status = 0;
  curl_easy_getinfo(reading.curl, CURLINFO_RESPONSE_CODE, &status);
  reading.response.status = static_cast<int>(status);
  try {
    if (!*reading.take || !(*reading.take)(reading.response, piece)) {
      keep(reading, piece);
    }
  } catch (...) {  // must not pass through libcurl
    reading.fault = std::current_exception();
    return CURL_WRITEFUNC_ERROR;
  }
  return piece.size();
}

int on_progress(void* of, curl_off_t /*down_total*/, curl_off_t /*down*/, curl_off_t /*up_total*/,
                curl_off_t /*up*/) {
  return static_cast<const Request*>(of)->is_cancelled() ? 1 : 0;
}

class HeaderList {
 public:
  ~HeaderList() { curl_slist_free_all(list_); }
  HeaderList() = default;
  HeaderList(const HeaderList&) = delete;
  HeaderList& operator=(const HeaderList&) = delete;

  void add(const std::string& name, const std::string& value) {
    const bool clean = std::all_of(value.begin(), value.end(), [](unsigned char letter) {
      return letter == '\t' || (letter >= 0x20 && letter != 0x7f);
    });
    if (name.empty() || name.find_first_of(": \t\r\n") != std::string::npos || !clean) {
      throw Error(ExitCode::Usage, "the value of the HTTP header '" + trimmed(name) +
                                       "' contains a control character, perhaps a line end: check "
                                       "the variable or file that it comes from");
    }
    list_ = curl_slist_append(list_, (name + ": " + value).c_str());
  }
  void leave_out(const char* name) { list_ = curl_slist_append(list_, name); }
  [[nodiscard]] curl_slist* get() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

void set_method(CURL* curl, const Request& request) {
  if (request.method == "HEAD") {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.method != "GET") {
    curl_easy_setopt(curl, CURLOPT_POST, 1L);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.data());
  }
}

void set_limits(CURL* curl, const Request& request) {
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(request.connect_timeout.count()));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.stall_timeout.count()));
  if (request.timeout) {
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout->count()));
  }
  if (request.is_cancelled) {
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &request);
    curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);  // waits for no name to be looked up either
  }
}

// libcurl neither follows redirects here nor reads ~/.netrc; a proxy that only forwards
// bytes gets no header of the request.
void set_manners(CURL* curl) {
  const std::string agent = "sherd/" + std::to_string(kVersion.major) + "." +
                            std::to_string(kVersion.minor) + "." + std::to_string(kVersion.patch);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, agent.c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HEADEROPT, static_cast<long>(CURLHEADER_SEPARATE));
  if (const char* bundle = std::getenv("CURL_CA_BUNDLE"); bundle != nullptr && *bundle != '\0') {
    curl_easy_setopt(curl, CURLOPT_CAINFO, bundle);
  }
}

bool is_redirect(const Response& response) {
  const int status = response.status;
  return (status == 301 || status == 302 || status == 303 || status == 307 || status == 308) &&
         !response.header("location").empty();
}

}  // namespace

std::string Response::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

Exchange exchange_once(CURL* curl, const Request& request, bool with_authorization,
                       std::uint64_t from_byte, const TakePiece& take) {
  curl_easy_reset(curl);  // keeps its connections
  HeaderList headers;
  for (const Header& header : request.headers) {
    headers.add(header.name, header.value);
  }
  if (with_authorization && !request.authorization.empty()) {
    headers.add("Authorization", request.authorization);
  }
  if (from_byte > 0) {
    headers.add("Range", "bytes=" + std::to_string(from_byte) + "-");
  }
  headers.leave_out("Expect:");  // some servers never answer it, and libcurl would wait
  set_manners(curl);
  set_method(curl, request);
  set_limits(curl, request);
  std::array<char, CURL_ERROR_SIZE> why{};
  Reading reading{curl, &request, &take, {}, {}};
  reading.response.url = request.url;
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &reading);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &reading);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why.data());
  const CURLcode result = curl_easy_perform(curl);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  if (reading.fault) {
    std::rethrow_exception(reading.fault);
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  reading.response.status = static_cast<int>(status);
  // libcurl may quote a proxy's variable, password included.
  const bool says_more = why[0] != '\0' && std::find(why.begin(), why.end(), '@') == why.end();
  return {result, says_more ? why.data() : curl_easy_strerror(result), std::move(reading.response)};
}

Exchange exchange(CURL* curl, const Request& request, std::uint64_t from_byte,
                  const TakePiece& take) {
  const std::string home = origin_of(request.url);
  Request asked = request;
  for (int redirects = 0;; ++redirects) {
    // A redirect's own text is nobody's.
    const TakePiece of_the_end = [&](const Response& response, std::string_view piece) {
      return is_redirect(response) || (take && take(response, piece));
    };
    Exchange done = exchange_once(curl, asked, origin_of(asked.url) == home, from_byte, of_the_end);
    const bool follows = request.method == "GET" || request.method == "HEAD";
    if (done.result != CURLE_OK || !follows || !is_redirect(done.response)) {
      return done;
    }
    if (redirects == kMostRedirects) {
      throw Error(ExitCode::Unavailable, shown(request.url) + ": more than " +
                                             std::to_string(kMostRedirects) +
                                             " redirects. Is this the right server?");
    }
    asked.url = redirected(asked.url, done.response.header("location"));
  }
}

void require_answer(const Request& request, const Exchange& done) {
  if (done.result == CURLE_OK) {
    return;
  }
  const bool certificate =
      done.result == CURLE_PEER_FAILED_VERIFICATION || done.result == CURLE_SSL_CACERT_BADFILE;
  throw Error(
      ExitCode::Unavailable,
      shown(request.url) + ": " + printable(done.why) +
          (certificate ? ". If a proxy has its own certificates, name their file in CURL_CA_BUNDLE"
                       : ". Check the address, the network and the proxy variables (https_proxy, "
                         "http_proxy, NO_PROXY)"));
}

}  // namespace sherd::net
