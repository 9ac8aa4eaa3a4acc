#pragma once
// What a step of a model multiplies.

#include <vector>

#include "llm/bench/bench_options.h"
#include "llm/bench/matmul_limit.h"
#include "llm/io/hf_config.h"

namespace llm::bench {

/// What a rank's micro-batches multiply in a step: linear layers, the head at the supervised
/// positions, and the half of attention that causality leaves, or less of it in a window. Adapters'
/// own products are left out.
[[nodiscard]] std::vector<MatmulShape> step_products(const io::HfConfig& config,
                                                     const BenchOptions& options);

}  // namespace llm::bench
