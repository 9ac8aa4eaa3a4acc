#pragma once
// One request and one answer, without retries and resumed transfers. Internal to net/.

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

/// Takes a part of an answer's body. Returns false if it belongs into the answer.
using TakePiece = std::function<bool(const Response& response, std::string_view piece)>;

struct Exchange {
  CURLcode result = CURLE_OK;
  std::string why;  ///< libcurl's message, if `result` is not CURLE_OK
  Response response;
};

/// Sends one request. `from_byte` requests the rest of a file; `with_authorization` sends the
/// header Authorization. Throws what `take` throws, and Error(Usage) for an invalid header.
[[nodiscard]] Exchange exchange_once(CURL* curl, const Request& request, bool with_authorization,
                                     std::uint64_t from_byte, const TakePiece& take);

/// The same, but follows redirects.
[[nodiscard]] Exchange exchange(CURL* curl, const Request& request, std::uint64_t from_byte,
                                const TakePiece& take);

/// Throws Error(Unavailable) if the exchange failed.
void require_answer(const Request& request, const Exchange& done);

}  // namespace sherd::net
