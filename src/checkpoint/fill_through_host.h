#pragma once
// Files are read into memory of the host, also for tensors of a device.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace sherd::detail {

/// Calls fill(tensor of the host), which is `out` itself where that is of the host.
template <class Fill>
void fill_through_host(const at::Tensor& out, const Fill& fill) {
  const at::Tensor host = out.is_cpu() ? out : at::empty(out.sizes(), out.scalar_type());
  fill(host);
  if (!out.is_cpu()) {
    out.copy_(host);
  }
}

}  // namespace sherd::detail
