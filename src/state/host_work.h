#pragma once
// Reading and writing values through memory of the host, on all threads of a rank.

#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "unit/shard_values.h"

namespace sherd::detail {

/// How long others wait for a rank that reads its part of a state.
constexpr std::chrono::minutes kLongestRead{30};

/// Calls fn(i) for each i below `count`, on all threads of the rank, in any order. Rethrows the
/// first exception; what has not begun by then is left out.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& fn);

/// Values and what is done with them. `work` gets them, from element `first` on, as a tensor [n] of
/// the host in their dtype: where they lie, or a copy if that is on a device, in two halves or at
/// rest. Values at rest that are read come in stretches, in order; all others come at once, on any
/// thread.
struct HostWork {
  ShardValues values;
  std::function<void(int64_t first, const at::Tensor& host)> work;
};

/// How HostWork uses its tensor.
enum class HostUse {
  Reads,  ///< `work` reads the values
  Fills,  ///< `work` writes all of them; copies are written back by the calling thread
};

/// Does all of the work. Memory: copies of at most 128 MiB at a time, or of one HostWork where that
/// is more; of values at rest one stretch, or of one HostWork where it fills them.
void on_host_in_parallel(const std::vector<HostWork>& all, HostUse use);

}  // namespace sherd::detail
