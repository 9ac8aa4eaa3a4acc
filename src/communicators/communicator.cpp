#include "sherd/communicator.h"

#include <ATen/core/Tensor.h>

namespace sherd {

void Communicator::all_reduce_on_device(const at::Tensor& values, ReduceOp op) {
  const at::Tensor on_host = values.cpu();
  all_reduce({on_host.mutable_data_ptr<double>(), static_cast<size_t>(on_host.numel())}, op);
  at::Tensor target = values;
  target.copy_(on_host);
}

Communicator::Counts Communicator::Counts::since(const Counts& before) const noexcept {
  return {gathers - before.gathers, reductions - before.reductions,
          replications - before.replications, all_reduces - before.all_reduces,
          bytes_sent - before.bytes_sent};
}

void Communicator::count_again(const Counts& captured) noexcept {
  counts_.gathers += captured.gathers;
  counts_.reductions += captured.reductions;
  counts_.replications += captured.replications;
  counts_.all_reduces += captured.all_reduces;
  counts_.bytes_sent += captured.bytes_sent;
}

}  // namespace sherd
