#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "sherd/memory.h"
#include "storage/own_work.h"

namespace sherd {

HostCopy::HostCopy(const at::Tensor& tensor) {
  detail::own_work([&] {
    const at::Tensor source = tensor.detach();
    if (source.is_cpu()) {
      on_host_ = source.clone();
      return;
    }
    on_host_ = at::empty(source.sizes(), source.options().device(at::kCPU)).pin_memory();
    on_host_.copy_(source, /*non_blocking=*/true);
    const c10::impl::VirtualGuardImpl device(source.device().type());
    come_.emplace(source.device().type());
    come_->record(device.getStream(source.device()));
  });
}

const at::Tensor& HostCopy::wait() const {
  if (come_) {
    come_->synchronize();
  }
  return on_host_;
}

}  // namespace sherd
