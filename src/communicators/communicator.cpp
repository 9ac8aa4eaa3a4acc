#include "sherd/communicator.h"

#include <ATen/core/Tensor.h>

namespace sherd {

void Communicator::all_reduce_on_device(const at::Tensor& values, ReduceOp op) {
  const at::Tensor on_host = values.cpu();
  all_reduce({on_host.mutable_data_ptr<double>(), static_cast<size_t>(on_host.numel())}, op);
  at::Tensor target = values;
  target.copy_(on_host);
}

}  // namespace sherd
