#include "llm/train/auto_dtype.h"

#include <algorithm>
#include <array>

#include <ATen/cpu/Utils.h>

namespace llm::train {

bool is_fast_at_bfloat16() {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  constexpr std::array kFast = {"avx512_bf16", "amx_bf16", "bf16"};
  return std::any_of(kFast.begin(), kFast.end(), [&](const char* name) {
    const auto found = capabilities.find(name);
    return found != capabilities.end() && found->second.isBool() && found->second.toBool();
  });
}

config::ParamDtype chosen_dtype(config::ParamDtype dtype, sherd::World& world) {
  double slow = is_fast_at_bfloat16() ? 0 : 1;
  world.all_reduce({&slow, 1}, sherd::ReduceOp::Max);
  if (dtype != config::ParamDtype::Auto) {
    return dtype;
  }
  return slow > 0 ? config::ParamDtype::Float32 : config::ParamDtype::BFloat16;
}

}  // namespace llm::train
