#include "world/dial.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include "files/file_descriptor.h"

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;

std::string numeric(const addrinfo& address) {
  char text[NI_MAXHOST] = {};
  getnameinfo(address.ai_addr, address.ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

/// One try, which may be under way.
class Attempt {
 public:
  explicit Attempt(const Endpoint& to) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int failure =
        getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &found);
    if (failure != 0) {
      result_.fault = std::string("the name does not resolve: ") + gai_strerror(failure);
      return;
    }
    result_.address = numeric(*found);
    start(*found);
    freeaddrinfo(found);
  }

  [[nodiscard]] bool is_under_way() const { return under_way_; }
  [[nodiscard]] pollfd event() const { return {socket_.get(), POLLOUT, 0}; }
  void end() {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    result_.fault = error == 0 ? "" : std::strerror(error);
    under_way_ = false;
  }
  [[nodiscard]] Dialled result() const {
    return under_way_ ? Dialled{result_.address, "no answer"} : result_;
  }

 private:
  void start(const addrinfo& address) {
    socket_ = files::FileDescriptor(
        socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    under_way_ = connect(socket_.get(), address.ai_addr, address.ai_addrlen) != 0;
    if (under_way_ && errno != EINPROGRESS) {
      result_.fault = std::strerror(errno);
      under_way_ = false;
    }
  }

  files::FileDescriptor socket_;
  bool under_way_ = false;
  Dialled result_;
};

}  // namespace

std::vector<Dialled> dial(const std::vector<Endpoint>& endpoints,
                          std::chrono::milliseconds patience) {
  std::vector<Attempt> attempts;
  for (const Endpoint& endpoint : endpoints) {
    attempts.emplace_back(endpoint);
  }
  const auto deadline = Clock::now() + patience;
  while (true) {
    std::vector<pollfd> events;
    std::vector<Attempt*> waiting;
    for (Attempt& attempt : attempts) {
      if (attempt.is_under_way()) {
        events.push_back(attempt.event());
        waiting.push_back(&attempt);
      }
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (events.empty() || left.count() <= 0) {
      break;
    }
    poll(events.data(), events.size(), static_cast<int>(left.count()));
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (events[i].revents != 0) {
        waiting[i]->end();
      }
    }
  }
  std::vector<Dialled> results;
  for (const Attempt& attempt : attempts) {
    results.push_back(attempt.result());
  }
  return results;
}

std::string to_text(const Endpoint& endpoint, const Dialled& dialled) {
  const bool named = !dialled.address.empty() && dialled.address != endpoint.host;
  return endpoint.host + ":" + std::to_string(endpoint.port) +
         (named ? ", which is " + dialled.address + " here" : "") +
         (dialled.fault.empty() ? "" : ": " + dialled.fault);
}

}  // namespace sherd::detail
