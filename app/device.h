#pragma once
// Which device the ranks of a verb compute on.

#include <CLI/CLI.hpp>

#include "app/rank.h"
#include "llm/config/run_config.h"

namespace app {

/// `--device auto|cpu|cuda`, for verbs without a recipe: what device.kind is in one.
void add_device_flag(CLI::App& verb, llm::config::DeviceKind& kind);

/// Of this rank: llm::train::chosen_device(). Asks the driver, but for `cpu`.
[[nodiscard]] c10::DeviceType device_of(const Rank& rank, llm::config::DeviceKind kind);

}  // namespace app
