#pragma once
// Buffers of a sharded model: whole on every rank, and part of its state.

#include <cstdint>
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

  /// Values are also there once an operator has written the buffer in place.
  [[nodiscard]] bool is_written() const { return has_values || tensor._version() != version; }
};

/// Gathers the names of each tensor, and gives those on meta memory of zeros.
[[nodiscard]] std::vector<ModelBuffer> take_over_buffers(
    const std::vector<std::pair<std::string, at::Tensor>>& named);

}  // namespace sherd::detail
