#include "rendezvous/dial.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>

#include "files/file_descriptor.h"

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenLooksAtLookups{10};

// A socket may get the very port that it dials as its own, if nobody listens there.
bool is_connected_to_itself(int socket) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_size = sizeof own;
  socklen_t other_size = sizeof other;
  return getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_size) == 0 &&
         own_size == other_size && std::memcmp(&own, &other, own_size) == 0;
}

/// A connection to one address, which may be under way.
struct Attempt {
  explicit Attempt(const addrinfo& to)
      : address(numeric_address(to.ai_addr, to.ai_addrlen)),
        socket(::socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    if (socket.get() >= 0 && connect(socket.get(), to.ai_addr, to.ai_addrlen) == 0) {
      end(0);
    } else if (errno != EINPROGRESS) {
      end(errno);
    }
  }
  void look() {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    end(error);
  }
  void end(int error) {
    under_way = false;
    error = error == 0 && is_connected_to_itself(socket.get()) ? ECONNREFUSED : error;
    fault = error == 0 ? "" : std::strerror(error);
  }
  [[nodiscard]] bool has_answered() const { return fault.empty(); }

  std::string address;
  files::FileDescriptor socket;
  bool under_way = true;
  std::string fault = "no answer";
};

bool is_ready(const Lookup& lookup) {
  return lookup.valid() && lookup.wait_for(Clock::duration(0)) == std::future_status::ready;
}

/// Connections to all addresses of one endpoint.
struct Call {
  /// Begins once the name is known; does nothing afterwards.
  void begin_when_known() {
    if (!known && is_ready(lookup)) {
      known = true;
      const addrinfo* one = lookup.get().addresses.get();
      for (; one != nullptr; one = one->ai_next) {
        attempts.emplace_back(*one);
      }
    }
  }
  /// The attempts to wait for: none once one has answered.
  [[nodiscard]] std::vector<Attempt*> under_way() {
    std::vector<Attempt*> waiting;
    for (Attempt& attempt : attempts) {
      if (attempt.has_answered()) {
        return {};
      }
      if (attempt.under_way) {
        waiting.push_back(&attempt);
      }
    }
    return waiting;
  }
  [[nodiscard]] Dialled result() const {
    if (!known) {
      return {"", "the name is still being looked up"};
    }
    if (const std::string& fault = lookup.get().fault; !fault.empty()) {
      return {"", "the name does not resolve: " + fault};
    }
    const std::string& first = attempts.front().fault;
    bool alike = true;
    Dialled all;
    for (const Attempt& one : attempts) {
      if (one.has_answered()) {
        return {one.address, ""};
      }
      alike = alike && one.fault == first;
      all.address += (all.address.empty() ? "" : ", ") + one.address;
      all.fault += (all.fault.empty() ? "" : "; ") + one.address + ": " + one.fault;
    }
    return {all.address, alike ? first : all.fault};
  }

  Lookup lookup;
  bool known = false;
  std::vector<Attempt> attempts = {};
};

// Waits until an attempt ends or `deadline` passes, or a little while if a name may become known.
// False if there is nothing to wait for.
bool wait_for_news(std::vector<Call>& calls, Clock::time_point deadline) {
  std::vector<pollfd> events;
  std::vector<Attempt*> waiting;
  bool all_known = true;
  for (Call& call : calls) {
    all_known = all_known && call.known;
    for (Attempt* const attempt : call.under_way()) {
      events.push_back({attempt->socket.get(), POLLOUT, 0});
      waiting.push_back(attempt);
    }
  }
  if (all_known && waiting.empty()) {
    return false;
  }
  const Clock::duration left = deadline - Clock::now();
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(
      all_known ? left : std::min<Clock::duration>(left, kBetweenLooksAtLookups));
  poll(events.data(), events.size(), static_cast<int>(std::max<long>(0, limit.count())));
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].revents != 0) {
      waiting[i]->look();
    }
  }
  return true;
}

}  // namespace

std::vector<Dialled> Dialler::dial(std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  std::vector<Call> calls;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    if (!lookups_[i].valid() || is_ready(lookups_[i])) {  // the addresses of a name may change
      lookups_[i] = look_up(endpoints_[i].host, endpoints_[i].port, SOCK_STREAM, resolver_);
    }
    calls.push_back({lookups_[i]});
  }
  do {
    for (Call& call : calls) {
      call.begin_when_known();
    }
  } while (wait_for_news(calls, deadline) && Clock::now() < deadline);
  std::vector<Dialled> results;
  for (const Call& call : calls) {
    results.push_back(call.result());
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
