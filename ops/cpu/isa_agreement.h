#pragma once

#include <string>
#include <vector>

#include "sherd/world.h"

namespace sherd::ops::cpu {

/// Has every rank take the least path of all, so that all compute alike; to be called before the
/// first operator. Returns a message for the user, empty where all had the same path.
/// Collective. Throws sherd::Error (RanksDisagree) where a rank names a path unknown here,
/// (Usage) on all ranks where one refuses its SHERD_CPU_ISA.
std::string agree_on_isa(World& world);

/// What agree_on_isa() returns for these paths, by rank.
[[nodiscard]] std::string isa_notice(const std::vector<std::string>& names);

}  // namespace sherd::ops::cpu
