#pragma once
// What `precision.param_dtype = "auto"` comes to.

#include "llm/config/run_config.h"
#include "sherd/world.h"

namespace llm::train {

/// Whether this process's processor multiplies bf16 faster than fp32: AVX512-BF16, AMX, or Arm's
/// BF16. Without them a product in bf16 takes about twenty times one in fp32.
[[nodiscard]] bool is_fast_at_bfloat16();

/// `dtype`, or for Auto what is fast on every rank. Collective.
[[nodiscard]] config::ParamDtype chosen_dtype(config::ParamDtype dtype, sherd::World& world);

}  // namespace llm::train
