#pragma once
// Buffers of a sharded model: whole on every rank, and part of its state.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace sherd::detail {

/// A buffer of the model, once however many names it has.
struct ModelBuffer {
  std::string name;                  ///< qualified, of its first owner
  std::vector<std::string> aliases;  ///< other names of the same tensor
  at::Tensor tensor;                 ///< the module's own
  bool has_values = true;            ///< false: built on meta and not written yet
  uint32_t version = 0;              ///< of a buffer built on meta, when it got memory

  /// Whether a module inside `unit` has it.
  [[nodiscard]] bool is_inside(const std::string& unit) const;
  /// Values are also there once an operator has written the buffer in place.
  [[nodiscard]] bool is_written() const { return has_values || tensor._version() != version; }
};

/// Gathers the names of each tensor. Gives those on meta memory of zeros, and moves and casts the
/// others: to `device`, and floating-point ones to `dtype`, where it is set.
[[nodiscard]] std::vector<ModelBuffer> take_over_buffers(
    const std::vector<std::pair<std::string, at::Tensor>>& named, c10::Device device,
    const std::optional<c10::ScalarType>& dtype);

}  // namespace sherd::detail
