#pragma once
// HTTP by libcurl: a request and its answer, and files whose transfer can be gone on with.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sherd::net {

struct Header {
  std::string name;
  std::string value;
};

/// What is asked of a server. Proxies are those of libcurl's environment: `https_proxy`,
/// `http_proxy`, `ALL_PROXY`, `NO_PROXY`; certificates those of the system, or of the file that
/// `CURL_CA_BUNDLE` names.
struct Request {
  std::string method = "GET";
  std::string url = {};              ///< http or https
  std::vector<Header> headers = {};  ///< whoever a redirect leads to gets these too: no secrets
  /// The value of the header Authorization ("Bearer …"), or none. Only the origin of `url` (scheme,
  /// host and port) gets it, no other that a redirect leads to.
  std::string authorization = {};
  std::string body = {};
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::seconds stall_timeout{30};                  ///< without a byte
  std::optional<std::chrono::milliseconds> timeout = {};   ///< of one exchange; none: no limit
  std::uint64_t max_body_bytes = std::uint64_t{16} << 20;  ///< of an answer kept in memory
  /// Asked about once a second; true ends the exchange as a failed one.
  std::function<bool()> is_cancelled = {};
  /// How often a GET or HEAD is sent where the server is busy (429, 500, 502 to 504) or the
  /// connection breaks. Between them pauses grow, or are as long as Retry-After says, up to a
  /// minute; where it says more, the answer stands.
  int tries = 1;
  std::chrono::milliseconds first_pause{250};  ///< before another try; doubled each time
  /// Told before a pause of more than a second.
  std::function<void(std::chrono::milliseconds pause)> on_pause = {};
};

struct Response {
  int status = 0;
  std::string url;                             ///< who answered, after redirects
  std::map<std::string, std::string> headers;  ///< by name in lower case
  std::string body;

  [[nodiscard]] bool ok() const { return status >= 200 && status < 300; }
  /// The header of this name, given in lower case; empty if there is none.
  [[nodiscard]] std::string header(const std::string& name) const;
};

/// Told as a file grows. `total_bytes` is 0 where neither caller nor server says it. What it throws
/// ends the transfer.
using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

/// Sends requests, one at a time, over connections that it keeps. For one thread.
///
/// Redirects of GET and HEAD are followed, ten at most, and none from https to http. Messages name
/// the place without user, password and query of a URL, and no header.
class Client {
 public:
  Client();
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Any status is an answer. Throws Error: Unavailable if there was none (no connection, cut off,
  /// too slow, too large, redirects without end), Usage for what is no URL or no header.
  [[nodiscard]] Response send(const Request& request);

  /// Brings a GET's answer into the file `path`, which is made when its first byte comes. What the
  /// file holds already are taken for its first bytes, and the rest is asked for; of a server that
  /// sends all of it again those are passed over. A transfer that breaks, or ends short of what
  /// `size_bytes` or the server says, is taken up again, up to eight times without the file getting
  /// longer than it ever was. An `ok` answer, without a body, means that the file is whole, and
  /// durable; any other that no byte was written. Throws as `send`, and Error: CannotWrite (also
  /// for what is no regular file), StorageIo; BadData where the server has another size than
  /// `size_bytes`, before anything of the file is touched. Of a file that has as many already
  /// nothing is asked.
  [[nodiscard]] Response download(const Request& request, const std::string& path,
                                  std::optional<std::uint64_t> size_bytes = {},
                                  const Progress& progress = {});

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace sherd::net
