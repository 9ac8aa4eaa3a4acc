#include "rendezvous/dial.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

#include "files/file_descriptor.h"

namespace sherd::detail {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenLooksAtLookups{10};

// Where nobody listens, a socket may get the very port that it asks for as its own, and then
// answers itself.
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
class Attempt {
 public:
  explicit Attempt(const addrinfo& to)
      : address_(numeric_address(to.ai_addr, to.ai_addrlen)),
        socket_(socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    if (socket_.get() >= 0 && connect(socket_.get(), to.ai_addr, to.ai_addrlen) == 0) {
      end(0);
    } else if (errno != EINPROGRESS) {
      end(errno);
    }
  }

  [[nodiscard]] bool is_under_way() const { return under_way_; }
  [[nodiscard]] bool has_answered() const { return !under_way_ && fault_.empty(); }
  [[nodiscard]] pollfd event() const { return {socket_.get(), POLLOUT, 0}; }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] std::string fault() const { return under_way_ ? "no answer" : fault_; }

  void look() {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    end(error);
  }

 private:
  void end(int error) {
    under_way_ = false;
    error = error == 0 && is_connected_to_itself(socket_.get()) ? ECONNREFUSED : error;
    fault_ = error == 0 ? "" : std::strerror(error);
  }

  std::string address_;
  files::FileDescriptor socket_;
  bool under_way_ = true;
  std::string fault_;
};

/// All addresses of one endpoint.
class Call {
 public:
  explicit Call(const Lookup& lookup) : lookup_(lookup) {}

  /// Begins once the name is known; does nothing afterwards.
  void begin_when_known() {
    if (!known_ && lookup_.ends_before(Clock::now())) {
      known_ = true;
      for (const addrinfo* one = lookup_.addresses(); one != nullptr; one = one->ai_next) {
        attempts_.emplace_back(*one);
      }
    }
  }
  [[nodiscard]] bool is_known() const { return known_; }
  [[nodiscard]] const Attempt* answered() const {
    const auto found = std::find_if(attempts_.begin(), attempts_.end(),
                                    [](const Attempt& one) { return one.has_answered(); });
    return found == attempts_.end() ? nullptr : &*found;
  }
  /// What is worth waiting for.
  [[nodiscard]] std::vector<Attempt*> under_way() {
    std::vector<Attempt*> waiting;
    for (Attempt& attempt : attempts_) {
      if (answered() == nullptr && attempt.is_under_way()) {
        waiting.push_back(&attempt);
      }
    }
    return waiting;
  }
  [[nodiscard]] Dialled result() const {
    if (!known_) {
      return {"", "the name is still being looked up"};
    }
    if (!lookup_.fault().empty()) {
      return {"", "the name does not resolve: " + lookup_.fault()};
    }
    const Attempt* const one = answered();
    return one != nullptr ? Dialled{one->address(), ""} : all_faults();
  }

 private:
  [[nodiscard]] Dialled all_faults() const {
    const std::string first = attempts_.front().fault();
    const bool alike = std::all_of(attempts_.begin(), attempts_.end(),
                                   [&](const Attempt& one) { return one.fault() == first; });
    Dialled all;
    for (const Attempt& one : attempts_) {
      all.address += (all.address.empty() ? "" : ", ") + one.address();
      all.fault += (all.fault.empty() ? "" : "; ") + one.address() + ": " + one.fault();
    }
    return {all.address, alike ? first : all.fault};
  }

  Lookup lookup_;
  bool known_ = false;
  std::vector<Attempt> attempts_;
};

// Looks at what has happened until `deadline`, or a little while where a name may become known.
void wait_for_news(std::vector<Call>& calls, Clock::time_point deadline) {
  std::vector<pollfd> events;
  std::vector<Attempt*> waiting;
  for (Call& call : calls) {
    for (Attempt* const attempt : call.under_way()) {
      events.push_back(attempt->event());
      waiting.push_back(attempt);
    }
  }
  const bool all_known =
      std::all_of(calls.begin(), calls.end(), [](const Call& call) { return call.is_known(); });
  const Clock::duration left = deadline - Clock::now();
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(
      all_known ? left : std::min<Clock::duration>(left, kBetweenLooksAtLookups));
  poll(events.data(), events.size(), static_cast<int>(std::max<long>(0, limit.count())));
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].revents != 0) {
      waiting[i]->look();
    }
  }
}

}  // namespace

Dialler::Dialler(std::vector<Endpoint> endpoints, Resolver resolver)
    : endpoints_(std::move(endpoints)), resolver_(std::move(resolver)) {}

std::vector<Dialled> Dialler::dial(std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  lookups_.resize(endpoints_.size());
  std::vector<Call> calls;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    std::optional<Lookup>& lookup = lookups_[i];
    if (!lookup || lookup->ends_before(Clock::now())) {  // what a name means may change
      lookup.emplace(endpoints_[i].host, endpoints_[i].port, SOCK_STREAM, resolver_);
    }
    calls.emplace_back(*lookup);
  }
  const auto goes_on = [&] {
    return std::any_of(calls.begin(), calls.end(),
                       [](Call& call) { return !call.is_known() || !call.under_way().empty(); });
  };
  do {
    for (Call& call : calls) {
      call.begin_when_known();
    }
    if (!goes_on()) {
      break;
    }
    wait_for_news(calls, deadline);
  } while (Clock::now() < deadline);
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
