#pragma once
// The command-line side of the configuration.

#include <span>
#include <string>

#include "llm/config/reading.h"

namespace llm::config {

/// Reads `--section.key value` and `--section.key=value` into `reading`; every fault goes into
/// `reading.faults`.
void read_flags(std::span<const std::string> flags, Reading& reading);

}  // namespace llm::config
