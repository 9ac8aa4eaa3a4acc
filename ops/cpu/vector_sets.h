#pragma once

#include <vector>

#include "ops/cpu/kernels.h"

namespace sherd::ops::cpu {

/// The sets beyond the plain one that `isa` can run, the fastest first. x86_sets.cpp or
/// no_vector_sets.cpp, as the build's processor has it.
[[nodiscard]] std::vector<KernelSet> vector_sets(Isa isa);

}  // namespace sherd::ops::cpu
