#include "unit/model_buffer.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/TensorImpl.h>

namespace sherd::detail {

bool ModelBuffer::is_inside(const std::string& unit) const {
  const std::string prefix = unit + ".";
  return name.starts_with(prefix) ||
         std::any_of(aliases.begin(), aliases.end(),
                     [&](const std::string& alias) { return alias.starts_with(prefix); });
}

std::vector<ModelBuffer> take_over_buffers(
    const std::vector<std::pair<std::string, at::Tensor>>& named, c10::Device device,
    const std::optional<c10::ScalarType>& dtype) {
  const at::NoGradGuard no_grad;
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
    const auto wanted = dtype && tensor.is_floating_point() ? *dtype : tensor.scalar_type();
    if (tensor.is_meta()) {
      // The module's members and registry hold this very TensorImpl, so both follow.
      const at::Tensor memory =
          at::zeros_like(tensor, tensor.options().device(device).dtype(wanted));
      tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
      buffer.has_values = false;
      buffer.version = static_cast<uint32_t>(tensor._version());
    } else if (tensor.device() != device || tensor.scalar_type() != wanted) {
      tensor.set_data(tensor.to(device, wanted));
    }
  }
  return buffers;
}

}  // namespace sherd::detail
