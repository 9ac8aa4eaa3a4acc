#pragma once

#include <vector>

#include "ops/cpu/kernels.h"

namespace sherd::ops::cpu {

/// The sets beyond the plain one that `isa` can run, the fastest first. x86_sets.cpp or
/// no_vector_sets.cpp, as the build's processor has it.
[[nodiscard]] std::vector<KernelSet> vector_sets(Isa isa);

/// Whether MKL takes its fastest products on this processor: it does so on Intel's alone.
[[nodiscard]] bool has_fastest_mkl();

}  // namespace sherd::ops::cpu
