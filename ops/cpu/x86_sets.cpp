#include <ATen/Version.h>

#include "ops/cpu/vector_sets.h"

namespace sherd::ops::cpu {

namespace AVX512 {
KernelSet kernel_set();
}  // namespace AVX512
namespace AVX2 {
KernelSet kernel_set();
}  // namespace AVX2

// As LibTorch chooses for its own kernels.
std::vector<KernelSet> vector_sets() {
  const std::string best = at::get_cpu_capability();
  if (best == "AVX512") {
    return {AVX512::kernel_set(), AVX2::kernel_set()};
  }
  if (best == "AVX2") {
    return {AVX2::kernel_set()};
  }
  return {};
}

}  // namespace sherd::ops::cpu
