#pragma once
// What `precision.param_dtype = "auto"` comes to.

#include "llm/config/run_config.h"
#include "sherd/backend.h"

namespace llm::setup {

/// `dtype`, or for Auto: on a GPU bf16 where it has that, else fp16; on the CPU (`gpu` null) bf16
/// where the path of the processor that all ranks have agreed on (ops/cpu/isa.h) multiplies bf16
/// faster than fp32, else fp32.
[[nodiscard]] config::ParamDtype chosen_dtype(config::ParamDtype dtype,
                                              const sherd::Gpu* gpu = nullptr);

}  // namespace llm::setup
