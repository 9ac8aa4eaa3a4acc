#pragma once
// From tensors to the loops of ops/cpu.

#include <cfenv>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "ops/cpu/kernels.h"

namespace sherd::ops::cpu {

/// Calls `f(T())` with T = float, c10::BFloat16 or c10::Half: a dtype that serves() accepts. Not on
/// the meta device, where there are no numbers.
template <class F>
void with_dtype(const at::Tensor& tensor, F&& f) {
  if (tensor.is_meta()) {
    return;
  }
  switch (tensor.scalar_type()) {
    case at::kFloat:
      std::forward<F>(f)(float());
      break;
    case at::kBFloat16:
      std::forward<F>(f)(c10::BFloat16());
      break;
    default:
      std::forward<F>(f)(c10::Half());
      break;
  }
}

/// The numbers of a dense tensor, for a loop that knows no strides; null for an undefined one.
template <class T>
const T* data(const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(!tensor.defined() || tensor.is_contiguous());
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}
template <class T>
T* mutable_data(const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(!tensor.defined() || tensor.is_contiguous());
  return tensor.defined() ? tensor.mutable_data_ptr<T>() : nullptr;
}

/// While one lives, its thread takes subnormal numbers (of fp32 those below 2⁻¹²⁶) for zero. Small
/// probabilities times small gradients give many of them, and an Intel processor takes many
/// times as long for a sum with one. PyTorch: torch.set_flush_denormal.
class FlushDenormals {
 public:
  FlushDenormals() {
    std::fegetenv(&before_);
    at::globalContext().setFlushDenormal(true);
  }
  ~FlushDenormals() { std::fesetenv(&before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  std::fenv_t before_{};
};

/// Deals `rows` rows of `width` elements out to the threads: f(begin, end). Subnormal numbers are
/// zero in it.
template <class F>
void for_rows(int64_t rows, int64_t width, const F& f) {
  constexpr int64_t kElementsWorthAThread = 32'768;
  at::parallel_for(0, rows,
                   std::max<int64_t>(1, kElementsWorthAThread / std::max<int64_t>(width, 1)),
                   [&](int64_t begin, int64_t end) {
                     const FlushDenormals flush;
                     f(begin, end);
                   });
}

}  // namespace sherd::ops::cpu
