#pragma once
// Files are read into memory of the host, also for values of a device or in two halves.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "segment/shard_values.h"

namespace sherd::detail {

/// Calls fill(tensor of the host), which is where `out` lies if that is a tensor of the host.
template <class Fill>
void fill_through_host(const ShardValues& out, const Fill& fill) {
  const at::Tensor place = out.in_place();
  if (place.defined() && place.is_cpu()) {
    return fill(place);
  }
  const at::Tensor host = at::empty({out.numel()}, out.dtype());
  fill(host);
  out.write(host);
}

}  // namespace sherd::detail
