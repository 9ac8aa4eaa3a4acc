#pragma once
// HTTP by libcurl: requests with their answers, and files whose transfer can be resumed.

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

/// A request to a server. Proxies come from libcurl's environment: `https_proxy`, `http_proxy`,
/// `ALL_PROXY`, `NO_PROXY`; certificates from the system, or from the file that `CURL_CA_BUNDLE`
/// names.
struct Request {
  std::string method = "GET";
  std::string url = {};              ///< http or https
  std::vector<Header> headers = {};  ///< also sent to targets of redirects: no secrets
  /// The value of the header Authorization ("Bearer …"), or none. Sent only to the origin of `url`
  /// (scheme, host and port), not to other targets of redirects.
  std::string authorization = {};
  std::string body = {};
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::seconds stall_timeout{30};                  ///< without a byte
  std::optional<std::chrono::milliseconds> timeout = {};   ///< per exchange; none: no limit
  std::uint64_t max_body_bytes = std::uint64_t{16} << 20;  ///< of an answer kept in memory
  /// Called about once a second; true ends the exchange as failed.
  std::function<bool()> is_cancelled = {};
  /// How often a GET or HEAD is sent if the server is busy (429, 500, 502 to 504) or the connection
  /// breaks. Pauses in between grow, or follow Retry-After up to a minute; if that is longer, the
  /// answer is final.
  int tries = 1;
  std::chrono::milliseconds first_pause{250};  ///< before another try; doubled each time
  /// Called before a pause of more than a second.
  std::function<void(std::chrono::milliseconds pause)> on_pause = {};
};

struct Response {
  int status = 0;
  std::string url;                             ///< of the answering server, after redirects
  std::map<std::string, std::string> headers;  ///< by name in lower case
  std::string body;

  [[nodiscard]] bool ok() const { return status >= 200 && status < 300; }
  /// Returns the header of this lower-case name; empty if there is none.
  [[nodiscard]] std::string header(const std::string& name) const;
};

/// Called as a file grows. `total_bytes` is 0 if neither caller nor server gives it. An exception
/// from it ends the transfer.
using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

/// Sends requests, one at a time, over connections that it keeps open. For one thread.
///
/// Follows at most ten redirects of GET and HEAD, none from https to http. Messages show URLs
/// without user, password and query, and no headers.
class Client {
 public:
  Client();
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Returns the answer, whatever its status. Throws Error: Unavailable if there was none (no
  /// connection, cut off, too slow, too large, endless redirects), Usage for an invalid URL or
  /// header.
  [[nodiscard]] Response send(const Request& request);

  /// Writes a GET's answer to the file `path`, which is created with the first byte. Bytes that the
  /// file already holds count as its beginning, and only the rest is requested; if the server sends
  /// everything again, they are skipped. A transfer that breaks, or ends before `size_bytes` or the
  /// server's size, is resumed, up to eight times without progress. An `ok` answer (without a body)
  /// means that the file is complete and durable; any other that no byte was written. Sends nothing
  /// if the file already has `size_bytes`. Throws as `send`, and Error: CannotWrite (also if `path`
  /// is not a regular file), StorageIo, and BadData if the server's size is not `size_bytes`,
  /// before the file is changed.
  [[nodiscard]] Response download(const Request& request, const std::string& path,
                                  std::optional<std::uint64_t> size_bytes = {},
                                  const Progress& progress = {});

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace sherd::net
