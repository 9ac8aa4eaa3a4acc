#pragma once
// From tensors to the launches of ops/cuda.

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "ops/cuda/device.h"
#include "ops/plain/plain_backend.h"

namespace sherd::ops::cuda {

/// For shapes and dtypes that no kernel is made for.
inline const Backend& plain_backend() {
  static const Backend plain = plain::plain_backend();
  return plain;
}

/// Whether kernels are compiled for its dtype.
[[nodiscard]] inline bool has_kernels(const at::Tensor& tensor) {
  const c10::ScalarType dtype = tensor.scalar_type();
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

/// Whether it begins at a multiple of 16 bytes.
[[nodiscard]] inline bool is_aligned(const at::Tensor& tensor) {
  constexpr std::uintptr_t kPackBytes = 16;
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kPackBytes == 0;
}

/// Whether kernels can read these as they are: of one dtype that they are compiled for, dense, and
/// aligned. Undefined ones, of which the first is none, are passed over.
[[nodiscard]] inline bool are_packed(at::TensorList tensors) {
  const at::Tensor& first = tensors.front();
  return has_kernels(first) &&
         std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
           return !tensor.defined() || (tensor.scalar_type() == first.scalar_type() &&
                                        tensor.is_contiguous() && is_aligned(tensor));
         });
}

/// Of one that has_kernels().
[[nodiscard]] inline Dtype dtype_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat      ? Dtype::Float
         : tensor.scalar_type() == at::kBFloat16 ? Dtype::BFloat16
                                                 : Dtype::Half;
}

/// Whether rows of this width are read in whole packs.
[[nodiscard]] inline bool fits_packs(const at::Tensor& tensor, int64_t width) {
  return width > 0 && width % pack_count(dtype_of(tensor)) == 0;
}

[[nodiscard]] inline bool is_16_bits(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

/// Whether each head of [T, N, H] begins with a pack.
[[nodiscard]] inline bool has_packed_heads(const at::Tensor& heads) {
  const int64_t count = pack_count(dtype_of(heads));
  return is_aligned(heads) && heads.stride(2) == 1 && heads.stride(1) % count == 0 &&
         heads.stride(0) % count == 0;
}
[[nodiscard]] inline bool have_packed_heads(const AttentionInputs& inputs) {
  return has_packed_heads(inputs.query) && has_packed_heads(inputs.key) &&
         has_packed_heads(inputs.value);
}

/// Null for an undefined one.
[[nodiscard]] inline const void* data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}
template <class T = void>
[[nodiscard]] T* mutable_data(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

/// Calls `launches(stream)` for kernels on a tensor's device, which is the current one meanwhile.
template <class Launches>
void on_device_of(const at::Tensor& tensor, const Launches& launches) {
  const c10::DeviceGuard guard(tensor.device());
  launches(current_stream(tensor.device()));
}

}  // namespace sherd::ops::cuda
