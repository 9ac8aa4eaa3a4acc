#pragma once
// The network interfaces of this host.

#include <vector>

#include "llm/doctor/machine.h"

namespace llm::doctor {

/// Those of this process's network namespace, by name.
[[nodiscard]] std::vector<Interface> interfaces();

}  // namespace llm::doctor
