#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "net/arrival.h"
#include "net/exchange.h"
#include "net/growing_file.h"
#include "net/http.h"
#include "net/url.h"
#include "sherd/error.h"

namespace sherd::net {
namespace {

using std::chrono::milliseconds;

constexpr int kMostFutileTries = 8;
constexpr milliseconds kLongestPause{60'000};

bool is_one_of(CURLcode result, const auto& codes) {
  return std::find(codes.begin(), codes.end(), result) != codes.end();
}

// What another try may mend whatever was asked for.
bool is_passing(const Exchange& done) {
  constexpr std::array kBroken{CURLE_PARTIAL_FILE, CURLE_RECV_ERROR, CURLE_SEND_ERROR,
                               CURLE_GOT_NOTHING,  CURLE_HTTP2,      CURLE_HTTP2_STREAM};
  const int status = done.response.status;
  return done.result == CURLE_OK
             ? status == 429 || status == 500 || (status >= 502 && status <= 504)
             : is_one_of(done.result, kBroken);
}

// The same of a file's transfer; `has_begun`: this server was there a moment ago.
bool is_worth_going_on(const Exchange& done, bool has_begun) {
  constexpr std::array kAway{CURLE_COULDNT_CONNECT, CURLE_OPERATION_TIMEDOUT};
  constexpr std::array kLost{CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_RESOLVE_PROXY,
                             CURLE_SSL_CONNECT_ERROR};
  return is_passing(done) || is_one_of(done.result, kAway) ||
         (has_begun && is_one_of(done.result, kLost));
}

// None if the server requests a longer pause.
std::optional<milliseconds> pause_before(int next_try, const Request& request,
                                         const Response& response) {
  const std::string wanted = response.header("retry-after");
  int seconds = 0;
  std::from_chars(wanted.data(), wanted.data() + wanted.size(), seconds);  // a date counts as 0
  const milliseconds pause{std::int64_t{1000} * std::max(0, seconds)};
  return pause > kLongestPause
             ? std::nullopt
             : std::optional(
                   std::max(pause, request.first_pause * (1 << std::clamp(next_try - 1, 0, 7))));
}

void rest(const Request& request, milliseconds pause) {
  if (pause > std::chrono::seconds(1) && request.on_pause) {
    request.on_pause(pause);
  }
  std::this_thread::sleep_for(pause);
}

}  // namespace

Client::Client() : handle_(std::make_unique<Handle>()) {
  if (handle_->curl == nullptr) {
    throw Error(ExitCode::Internal, "libcurl could not be initialised");
  }
}
Client::~Client() = default;

Response Client::send(const Request& request) {
  const bool may_repeat = request.method == "GET" || request.method == "HEAD";
  for (int tries = 1;; ++tries) {
    Exchange done = exchange(handle_->curl.get(), request, 0, {});
    const auto pause = pause_before(tries, request, done.response);
    if (!may_repeat || tries >= request.tries || !is_passing(done) || !pause) {
      require_answer(request, done);
      return std::move(done.response);
    }
    rest(request, *pause);
  }
}

Response Client::download(const Request& request, const std::string& path,
                          std::optional<std::uint64_t> size_bytes, const Progress& progress) {
  GrowingFile file(path);
  if (size_bytes && *size_bytes > 0 && file.size_bytes() == *size_bytes) {
    return {.status = 200, .url = request.url, .headers = {}, .body = {}};
  }
  Arrival arrival(file, size_bytes, progress);
  const TakePiece take = [&](const Response& response, std::string_view piece) {
    return arrival.take(response, piece);
  };
  const std::uint64_t begun_bytes = file.size_bytes();
  std::uint64_t most_bytes = begun_bytes;
  for (int futile_tries = 0;;) {
    const std::uint64_t from_byte = arrival.begin();
    Exchange done = exchange(handle_->curl.get(), request, from_byte, take);
    const bool ended = done.result == CURLE_OK && done.response.ok();
    if (ended && arrival.end(done.response)) {
      file.finish();
      return std::move(done.response);
    }
    const bool no_such_rest =
        done.result == CURLE_OK && done.response.status == 416 && from_byte > 0;
    if (no_such_rest) {
      arrival.refused(done.response);
    }
    futile_tries = file.size_bytes() > most_bytes ? 0 : futile_tries + 1;
    most_bytes = std::max(most_bytes, file.size_bytes());
    const auto pause = pause_before(futile_tries, request, done.response);
    const bool goes_on = ended || no_such_rest || is_worth_going_on(done, most_bytes > begun_bytes);
    if (!goes_on || !pause || futile_tries == kMostFutileTries) {
      require_answer(request, done);
      if (ended || no_such_rest) {
        throw Error(ExitCode::Unavailable,
                    shown(request.url) + ": the server repeatedly closes the connection after " +
                        std::to_string(file.size_bytes()) + " of " +
                        std::to_string(arrival.total_bytes()) +
                        " bytes. The same command resumes where it stopped");
      }
      return std::move(done.response);
    }
    rest(request, *pause);
  }
}

}  // namespace sherd::net
