#pragma once
// The network interfaces of this host.

#include <optional>
#include <string>
#include <vector>

namespace llm::doctor {

struct Interface {
  std::string name;
  std::vector<std::string> addresses;
  bool is_up = false;
  bool is_loopback = false;
  std::optional<int> megabits_per_second;
};

/// Those of this process's network namespace, by name.
[[nodiscard]] std::vector<Interface> interfaces();

}  // namespace llm::doctor
