// A processor for which only the plain loops are compiled.

#include "ops/cpu/vector_sets.h"

namespace sherd::ops::cpu {

std::vector<KernelSet> vector_sets(Isa /*isa*/) {
  return {};
}

bool has_fastest_mkl() {
  return false;
}

}  // namespace sherd::ops::cpu
