#include "model_buffer.h"

#include <algorithm>

#include <ATen/ops/zeros_like.h>
#include <c10/core/TensorImpl.h>

namespace sherd::detail {

std::vector<ModelBuffer> take_over_buffers(
    const std::vector<std::pair<std::string, at::Tensor>>& named) {
  std::vector<ModelBuffer> buffers;
  for (const auto& [name, tensor] : named) {
    const auto known = std::find_if(buffers.begin(), buffers.end(), [&](const ModelBuffer& other) {
      return other.tensor.is_same(tensor);
    });
    if (known != buffers.end()) {
      known->aliases.push_back(name);
      continue;
    }
    ModelBuffer& buffer = buffers.emplace_back(ModelBuffer{name, {}, tensor});
    if (tensor.is_meta()) {
      // The module's members and registry hold this very TensorImpl, so both follow.
      const at::Tensor memory = at::zeros_like(tensor, tensor.options().device(at::kCPU));
      tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
      buffer.has_values = false;
      buffer.version = static_cast<uint32_t>(tensor._version());
    }
  }
  return buffers;
}

}  // namespace sherd::detail
