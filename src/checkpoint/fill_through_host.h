#pragma once
// Files are read into memory of the host, also for values of a device or in two halves.

#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "segment/shard_values.h"

namespace sherd::detail {

/// Calls fill(first, tensor of the host) for stretches in order: one, where `out` lies, if that is
/// a tensor of the host.
template <class Fill>
void fill_through_host(const ShardValues& out, const Fill& fill) {
  const at::Tensor place = out.in_place();
  if (place.defined() && place.is_cpu()) {
    return fill(int64_t{0}, place);
  }
  constexpr int64_t kStretch = int64_t{1} << 20;
  for (int64_t first = 0; first < out.numel(); first += kStretch) {
    const int64_t numel = std::min(kStretch, out.numel() - first);
    const at::Tensor host = at::empty({numel}, out.dtype());
    fill(first, host);
    out.narrow(first, numel).write(host);
  }
}

}  // namespace sherd::detail
