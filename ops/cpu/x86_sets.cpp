#include "ops/cpu/vector_sets.h"

namespace sherd::ops::cpu {

namespace AVX512_BF16 {
KernelSet kernel_set();
}  // namespace AVX512_BF16
namespace AVX512 {
KernelSet kernel_set();
}  // namespace AVX512
namespace AVX2 {
KernelSet kernel_set();
}  // namespace AVX2

std::vector<KernelSet> vector_sets(Isa isa) {
  if (isa >= Isa::Avx512Bf16) {
    return {AVX512_BF16::kernel_set(), AVX512::kernel_set(), AVX2::kernel_set()};
  }
  if (isa == Isa::Avx512) {
    return {AVX512::kernel_set(), AVX2::kernel_set()};
  }
  if (isa == Isa::Avx2) {
    return {AVX2::kernel_set()};
  }
  return {};
}

bool has_fastest_mkl() {
  return __builtin_cpu_is("intel") != 0;
}

}  // namespace sherd::ops::cpu
