#include "llm/doctor/interfaces.h"

#include <array>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace llm::doctor {
namespace {

// Empty for what is no address of IP.
std::string text_of(const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) {
    return "";
  }
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  const int failed = ::getnameinfo(address, size, text.data(), static_cast<socklen_t>(text.size()),
                                   nullptr, 0, NI_NUMERICHOST);
  return failed != 0 ? "" : text.data();
}

std::optional<int> speed_of(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  int megabits = 0;
  return file >> megabits && megabits > 0 ? std::optional(megabits) : std::nullopt;
}

}  // namespace

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::map<std::string, Interface> by_name;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    Interface& found = by_name[entry->ifa_name];
    found.name = entry->ifa_name;
    found.is_up = (entry->ifa_flags & IFF_UP) != 0;
    found.is_loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    found.megabits_per_second = speed_of(found.name);
    if (std::string address = text_of(entry->ifa_addr); !address.empty()) {
      found.addresses.push_back(std::move(address));
    }
  }
  std::vector<Interface> all;
  for (auto& [name, found] : by_name) {
    all.push_back(std::move(found));
  }
  return all;
}

}  // namespace llm::doctor
