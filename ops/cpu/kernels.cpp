#include "ops/cpu/kernels.h"

#include "ops/cpu/vector_sets.h"

namespace sherd::ops::cpu {

namespace DEFAULT {
KernelSet kernel_set();
}  // namespace DEFAULT

const std::vector<KernelSet>& kernel_sets() {
  static const std::vector<KernelSet> sets = [] {
    std::vector<KernelSet> found = vector_sets();
    found.push_back(DEFAULT::kernel_set());
    return found;
  }();
  return sets;
}

template <>
const Kernels<float>& kernels<float>() {
  static const Kernels<float>& best = *kernel_sets().front().floats;
  return best;
}

template <>
const Kernels<c10::BFloat16>& kernels<c10::BFloat16>() {
  static const Kernels<c10::BFloat16>& best = *kernel_sets().front().halves;
  return best;
}

}  // namespace sherd::ops::cpu
