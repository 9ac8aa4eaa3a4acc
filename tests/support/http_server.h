#pragma once
// A real HTTP server on loopback that a test starts, answers by a function, and asks afterwards
// what it was sent. (By cpp-httplib, which only the source of this header sees.)

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sherd::test {

/// A request as it came.
struct Asked {
  std::string method;
  std::string path;    ///< decoded, without the query
  std::string target;  ///< as it was sent
  std::multimap<std::string, std::string> headers;
  std::string body;

  /// The value of a header, by its name as it was sent; empty if there is none.
  [[nodiscard]] std::string header(const std::string& name) const;
};

/// What is answered. A request for a range of the body of a 200 gets a 206 with that range.
struct Answer {
  int status = 200;
  std::string body = {};
  std::map<std::string, std::string> headers = {};
  std::size_t cut_after_bytes = std::string::npos;  ///< the connection breaks after so many
  std::chrono::milliseconds stall{0};               ///< before it breaks
  bool ignores_range = false;                       ///< all of it comes, whatever was asked for
  bool says_no_length = false;                      ///< the body ends where the connection does
};

class HttpServer {
 public:
  /// Called in the server's threads, one request at a time.
  using Handler = std::function<Answer(const Asked& asked)>;

  explicit HttpServer(Handler handler, const std::string& host = "127.0.0.1");
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// "http://127.0.0.1:12345"
  [[nodiscard]] std::string url() const;
  /// All requests so far, in the order of their coming.
  [[nodiscard]] std::vector<Asked> asked() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sherd::test
