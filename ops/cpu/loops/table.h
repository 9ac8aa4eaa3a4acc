#pragma once
// What each instruction set contributes to its table of loops. CPU_CAPABILITY is the set's name, as
// for LibTorch's own kernels.

#include "ops/cpu/kernels.h"

namespace sherd::ops::cpu::CPU_CAPABILITY {

template <class T>
void add_softmax(Kernels<T>& table);
template <class T>
void add_decode(Kernels<T>& table);
template <class T>
void add_small_heads(Kernels<T>& table);
template <class T>
void add_few_rows(Kernels<T>& table);
template <class T>
void add_quantized(Kernels<T>& table);
template <class T>
void add_norms(Kernels<T>& table);
template <class T>
void add_activations(Kernels<T>& table);
template <class T>
void add_cross_entropy(Kernels<T>& table);

[[nodiscard]] KernelSet kernel_set();

}  // namespace sherd::ops::cpu::CPU_CAPABILITY
