#pragma once
// Name lookups, whether an address answers, and sockets that listen on one interface only.

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <netdb.h>
#include <sys/socket.h>

#include "files/file_descriptor.h"
#include "launch/pipes.h"

namespace sherd::detail {

/// getaddrinfo(3), or what a test puts in its place.
using Resolver = std::function<int(const char*, const char*, const addrinfo*, addrinfo**)>;

/// The addresses of a name on this host: at least one, or the reason why it does not resolve.
struct Resolved {
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses{nullptr, &freeaddrinfo};
  std::string fault;
};
using Lookup = std::shared_future<Resolved>;

/// Looks a name up on a thread of its own, since a resolver whose server is silent takes up to a
/// minute. The result may be dropped at any time.
[[nodiscard]] Lookup look_up(const std::string& host, std::uint16_t port, int socket_type,
                             const Resolver& resolver = &getaddrinfo);

/// Returns an address as text: "10.0.0.7".
[[nodiscard]] std::string numeric_address(const sockaddr* address, socklen_t size);

/// Returns a listening TCP socket on `host`:`port` and on no other interface. Throws
/// Error(Unavailable), naming host, port and what to try.
[[nodiscard]] int listen_on(const std::string& host, std::uint16_t port);

/// Returns the numeric address that a socket is bound to.
[[nodiscard]] std::string address_of(int socket);

/// Returns the port that a socket is bound to.
[[nodiscard]] std::uint16_t port_of(int socket);

/// Sets whether a listening socket accepts connections. No effect if the system refuses it.
void set_admitting(int listening_socket, bool admits);

/// Returns this process's listening TCP sockets.
[[nodiscard]] std::vector<int> listening_sockets();

/// Limits each send and receive on this process's TCP connections to that port. Without a limit, a
/// rank that is cut off waits until TCP gives up, 15 minutes.
void limit_connections_to(std::uint16_t port, std::chrono::milliseconds limit);

/// Returns this host's numeric address on the way to `host`. Throws Error(Unavailable).
[[nodiscard]] std::string local_address_towards(const std::string& host, std::uint16_t port);

/// Returns a numeric address of this host after its interface: "eth0 (10.0.0.2)".
[[nodiscard]] std::string with_interface(const std::string& address);

/// Where a rank listens.
struct Endpoint {
  std::string host;  ///< name or numeric address
  std::uint16_t port = 0;
};

/// The result of an attempt to connect.
struct Dialled {
  /// Numeric: the address that answered, else all that `host` resolved to; empty if it did not.
  std::string address;
  std::string fault;  ///< empty: it answered
};

/// Tries to connect to endpoints, once or several times.
class Dialler {
 public:
  explicit Dialler(std::vector<Endpoint> endpoints, Resolver resolver = &getaddrinfo)
      : endpoints_(std::move(endpoints)),
        resolver_(std::move(resolver)),
        lookups_(endpoints_.size()) {}

  /// Tries all addresses of all endpoints at the same time, for `patience` at most. A name that is
  /// still being looked up then is a fault, and the next call waits for the same lookup.
  [[nodiscard]] std::vector<Dialled> dial(std::chrono::milliseconds patience);

 private:
  std::vector<Endpoint> endpoints_;
  Resolver resolver_;
  std::vector<Lookup> lookups_;  ///< by endpoint
};

/// "node0:29500, which is 10.0.0.7 here: Connection refused".
[[nodiscard]] std::string to_text(const Endpoint& endpoint, const Dialled& dialled);

/// Accepts and closes each connection to a port of this host, on a thread.
class AnsweringSocket {
 public:
  /// On `host` and no other interface, on a port that the system picks. Throws Error(Unavailable).
  explicit AnsweringSocket(const std::string& host);
  ~AnsweringSocket() {
    stop_.write_end.close();
    thread_.join();
  }
  AnsweringSocket(const AnsweringSocket&) = delete;
  AnsweringSocket& operator=(const AnsweringSocket&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_of(listening_.get()); }

 private:
  void answer() const;

  files::FileDescriptor listening_;
  launch::Pipe stop_;  // closing its write end ends the thread
  std::thread thread_;
};

}  // namespace sherd::detail
