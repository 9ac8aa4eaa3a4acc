#pragma once
// Which device the ranks of a verb compute on.

#include <CLI/CLI.hpp>

#include "app/rank.h"
#include "llm/config/run_config.h"

namespace app {

/// Adds `--device auto|cpu|cuda`, for verbs without a recipe; in a recipe it is device.kind.
void add_device_flag(CLI::App& verb, llm::config::DeviceKind& kind);

/// Returns this rank's device: llm::setup::chosen_device(). Asks the driver, except for `cpu`.
[[nodiscard]] c10::DeviceType device_of(const Rank& rank, llm::config::DeviceKind kind);

}  // namespace app
