#include "ops/cpu/kernels.h"

#include "ops/cpu/vector_sets.h"

namespace sherd::ops::cpu {

namespace DEFAULT {
KernelSet kernel_set();
}  // namespace DEFAULT

namespace {

// Of each path up to the machine's: already the making of another's table could use instructions
// that the machine lacks.
const KernelSet& best_set() {
  static const std::vector<KernelSet> best = [] {
    std::vector<KernelSet> sets;
    for (int i = 0; i <= static_cast<int>(machine_isa()); ++i) {
      sets.push_back(kernel_sets(static_cast<Isa>(i)).front());
    }
    return sets;
  }();
  return best.at(static_cast<size_t>(isa()));  // none of an assumed one
}

}  // namespace

std::vector<KernelSet> kernel_sets(Isa isa) {
  std::vector<KernelSet> found = vector_sets(isa);
  found.push_back(DEFAULT::kernel_set());
  return found;
}

template <class T>
const Kernels<T>& kernels() {
  return best_set().of<T>();
}
template const Kernels<float>& kernels<float>();
template const Kernels<c10::BFloat16>& kernels<c10::BFloat16>();
template const Kernels<c10::Half>& kernels<c10::Half>();

}  // namespace sherd::ops::cpu
