#pragma once
// Tensors whose memory may move, and where those of resharded units point: addresses without access
// rights.

#include <cstdint>
#include <string>
#include <vector>

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

/// Returns a tensor [numel] on memory that it does not own.
[[nodiscard]] at::Tensor flat_tensor(void* data, int64_t numel, c10::ScalarType dtype,
                                     c10::Device device);

/// Returns the message for the use of a resharded parameter: what happened, and what to do instead.
[[nodiscard]] std::string explain_use(const std::string& parameter, const std::string& unit);
/// The same for a view of one of a unit's parameters.
[[nodiscard]] std::string explain_use_of_view(const std::string& unit);

/// Addresses without access rights, where a resharded unit's parameters point: a use outside the
/// unit faults at once, and the address says which parameter it was.
class ForbiddenRegion {
 public:
  explicit ForbiddenRegion(int64_t bytes);
  ~ForbiddenRegion();
  ForbiddenRegion(const ForbiddenRegion&) = delete;
  ForbiddenRegion& operator=(const ForbiddenRegion&) = delete;

  [[nodiscard]] void* data() const { return data_; }

  /// Names the parameter that ends there, for explain(). Called in order of address.
  void name_parameter(int64_t end_byte, const std::string& parameter, const std::string& unit);
  /// Returns what a fault at `address` means; null if it is elsewhere. Async-signal-safe.
  [[nodiscard]] const std::string* explain(const void* address) const;

 private:
  struct Name {
    int64_t end_byte;
    std::string message;
  };
  void* data_;
  int64_t bytes_;
  std::vector<Name> names_;
};

}  // namespace sherd::detail
