#pragma once
// Tensors whose memory may move, and where those of resharded units point: addresses without access
// rights.

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

namespace sherd::detail {

/// Returns a storage that owns nothing. After point_at() its tensors, and what autograd saved of
/// them, have the new memory without a change of version.
[[nodiscard]] c10::intrusive_ptr<c10::StorageImpl> movable_storage(int64_t bytes,
                                                                   c10::Device device);
/// `is_forbidden`: asking for its address throws the c10::Error of forbid().
void point_at(c10::StorageImpl& storage, void* data, bool is_forbidden = false);
/// From now on, until point_at(), asking for its address throws a c10::Error with this message.
void forbid(c10::StorageImpl& storage, const std::string& message);
/// Returns a storage without memory: asking for its address throws a c10::Error with this message.
[[nodiscard]] c10::intrusive_ptr<c10::StorageImpl> forbidden_storage(int64_t bytes,
                                                                     c10::Device device,
                                                                     const std::string& message);

/// Returns a contiguous view at `offset` elements.
[[nodiscard]] at::Tensor view_of(const c10::intrusive_ptr<c10::StorageImpl>& storage,
                                 int64_t offset, at::IntArrayRef shape, c10::ScalarType dtype);

/// Returns a tensor [numel] on memory that it does not own, or that `owner`, which it keeps, owns.
[[nodiscard]] at::Tensor flat_tensor(void* data, int64_t numel, c10::ScalarType dtype,
                                     c10::Device device, std::shared_ptr<void> owner = nullptr);

/// Returns the message for the use of a resharded parameter: what happened, and what to do instead.
[[nodiscard]] std::string explain_use(const std::string& parameter, const std::string& unit);
/// The same for a view of one of a unit's parameters.
[[nodiscard]] std::string explain_use_of_view(const std::string& unit);

/// Returns addresses without access rights, where the parameters of a resharded segment point: a
/// use past LibTorch, whose own ways to an address throw, faults at once. `message`: what a fault
/// there means, see explain_access_to_sharded_parameters().
[[nodiscard]] std::shared_ptr<void> forbidden_addresses(int64_t bytes, const std::string& message);

}  // namespace sherd::detail
