#pragma once
// One request and one answer, without what a redirect or a broken transfer asks for. Of net/ alone.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <curl/curl.h>

#include "net/http.h"

namespace sherd::net {

struct Client::Handle {
  std::unique_ptr<CURL, void (*)(CURL*)> curl{curl_easy_init(), curl_easy_cleanup};
};

/// Takes a piece of an answer's body. False: it belongs into the answer.
using TakePiece = std::function<bool(const Response& response, std::string_view piece)>;

struct Exchange {
  CURLcode result = CURLE_OK;
  std::string why;  ///< libcurl's words, where `result` is no CURLE_OK
  Response response;
};

/// Sends one request. `from_byte` asks for a file's rest; `with_authorization` says whether this
/// place may know it. Throws what `take` throws, and Error(Usage) for what is no header.
[[nodiscard]] Exchange exchange_once(CURL* curl, const Request& request, bool with_authorization,
                                     std::uint64_t from_byte, const TakePiece& take);

/// The same, with redirects followed.
[[nodiscard]] Exchange exchange(CURL* curl, const Request& request, std::uint64_t from_byte,
                                const TakePiece& take);

/// Throws Error(Unavailable) for an exchange that failed.
void require_answer(const Request& request, const Exchange& done);

}  // namespace sherd::net
