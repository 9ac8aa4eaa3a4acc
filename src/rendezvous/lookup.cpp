#include "rendezvous/lookup.h"

#include <array>
#include <utility>

#include "files/quiet_thread.h"

namespace sherd::detail {

Lookup::Lookup(const std::string& host, std::uint16_t port, int socket_type,
               const Resolver& resolver) {
  std::promise<Found> promise;
  found_ = promise.get_future().share();
  const auto look_up = [host, service = std::to_string(port), socket_type](const Resolver& asked,
                                                                           int flags) {
    addrinfo hints{};
    hints.ai_flags = flags;
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = socket_type;
    addrinfo* list = nullptr;
    const int failure = asked(host.c_str(), service.c_str(), &hints, &list);
    Found found;
    if (failure != 0) {
      found.fault = gai_strerror(failure);
    } else {
      found.addresses.reset(list);
    }
    return found;
  };
  if (Found found = look_up(&getaddrinfo, AI_NUMERICHOST); found.addresses != nullptr) {
    promise.set_value(std::move(found));  // an address is no name, and needs no thread
    return;
  }
  auto on_a_thread = [look_up, resolver, promise = std::move(promise)]() mutable {
    promise.set_value(look_up(resolver, 0));
  };
  files::start_quiet_thread(std::move(on_a_thread)).detach();
}

bool Lookup::ends_before(std::chrono::steady_clock::time_point deadline) const {
  return found_.wait_until(deadline) == std::future_status::ready;
}

const addrinfo* Lookup::addresses() const {
  return found_.get().addresses.get();
}

const std::string& Lookup::fault() const {
  return found_.get().fault;
}

std::string numeric_address(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int failure = getnameinfo(address, size, text.data(), static_cast<socklen_t>(text.size()),
                                  nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? text.data() : "";
}

}  // namespace sherd::detail
