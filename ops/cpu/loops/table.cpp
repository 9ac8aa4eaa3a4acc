// The table of one instruction set.

#include "ops/cpu/loops/table.h"

#define SHERD_TEXT(name) #name
#define SHERD_TEXT_OF(name) SHERD_TEXT(name)

namespace sherd::ops::cpu::CPU_CAPABILITY {
namespace {

template <class T>
Kernels<T> filled() {
  Kernels<T> table = {};
  add_softmax(table);
  add_decode(table);
  add_small_heads(table);
  add_few_rows(table);
  add_quantized(table);
  add_norms(table);
  add_activations(table);
  add_cross_entropy(table);
  return table;
}

}  // namespace

KernelSet kernel_set() {
  static const Kernels<float> floats = filled<float>();
  static const Kernels<c10::BFloat16> bfloats = filled<c10::BFloat16>();
  static const Kernels<c10::Half> halves = filled<c10::Half>();
  return {SHERD_TEXT_OF(CPU_CAPABILITY), &floats, &bfloats, &halves};
}

}  // namespace sherd::ops::cpu::CPU_CAPABILITY
