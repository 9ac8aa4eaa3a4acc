#include "llm/setup/auto_dtype.h"

#include "ops/cpu/isa.h"

namespace llm::setup {

config::ParamDtype chosen_dtype(config::ParamDtype dtype, const sherd::Gpu* gpu) {
  if (dtype != config::ParamDtype::Auto) {
    return dtype;
  }
  if (gpu != nullptr) {
    return gpu->has_bfloat16() ? config::ParamDtype::BFloat16 : config::ParamDtype::Float16;
  }
  const bool fast_at_bf16 = sherd::ops::cpu::isa() >= sherd::ops::cpu::Isa::Avx512Bf16;
  return fast_at_bf16 ? config::ParamDtype::BFloat16 : config::ParamDtype::Float32;
}

}  // namespace llm::setup
