#pragma once
// Tensors whose memory may move.

#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

namespace sherd::detail {

/// A storage that owns nothing and may be pointed elsewhere: tensors that view it, and what
/// autograd saved of them, follow without a change of version.
[[nodiscard]] c10::intrusive_ptr<c10::StorageImpl> movable_storage(int64_t bytes,
                                                                   c10::Device device);
void point_at(c10::StorageImpl& storage, void* data);
/// A storage without memory: asking for its address throws a c10::Error with this message.
[[nodiscard]] c10::intrusive_ptr<c10::StorageImpl> forbidden_storage(int64_t bytes,
                                                                     c10::Device device,
                                                                     const std::string& message);

/// A contiguous view at `offset` elements.
[[nodiscard]] at::Tensor view_of(const c10::intrusive_ptr<c10::StorageImpl>& storage,
                                 int64_t offset, at::IntArrayRef shape, c10::ScalarType dtype);

/// A tensor [numel] on memory that it does not own.
[[nodiscard]] at::Tensor flat_tensor(void* data, int64_t numel, c10::ScalarType dtype,
                                     c10::Device device);

}  // namespace sherd::detail
