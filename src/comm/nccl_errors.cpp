#include "comm/nccl_errors.h"

#include <cstdlib>
#include <sstream>

namespace sherd::detail {

std::string nccl_reason(const std::string& thrown) {
  if (thrown.find("NCCL error") == std::string::npos &&
      thrown.find("NCCL communicator") == std::string::npos) {
    return {};
  }
  // c10d writes where, the kind of error, what that means in general, and this line at last.
  constexpr const char* kLast = "Last error:";
  const size_t last = thrown.rfind(kLast);
  std::istringstream lines(
      last == std::string::npos ? thrown : thrown.substr(last + std::string(kLast).size()));
  std::string reason;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      reason += (reason.empty() ? "" : "; ") + line;
    }
  }
  while (!reason.empty() && (reason.back() == '.' || reason.back() == ' ')) {
    reason.pop_back();
  }
  return reason.empty() ? "an error of which it says nothing" : reason;
}

std::string nccl_interfaces() {
  const char* const named = std::getenv("NCCL_SOCKET_IFNAME");
  return named == nullptr
             ? "NCCL_SOCKET_IFNAME is not set, so NCCL chose the network interface itself."
             : std::string("NCCL was told to use the network interface NCCL_SOCKET_IFNAME=") +
                   named + ".";
}

}  // namespace sherd::detail
