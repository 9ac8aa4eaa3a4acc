#pragma once
// Reads and writes values through host memory, on all threads of a rank.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "state/entries.h"
#include "unit/shard_values.h"

namespace sherd::detail {

/// Calls fn(i) for each i below `count`, on all threads of the rank, in any order. Rethrows the
/// first exception; calls that have not begun by then are left out.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& fn);

/// Values and the work on them. `work` receives them, from element `first` on, as a host tensor [n]
/// in their dtype: in place, or a copy if they are on a device, in two halves or offloaded.
/// Offloaded values that are read come in chunks, in order; all others come at once, on any thread.
struct HostWork {
  ShardValues values;
  std::function<void(int64_t first, const at::Tensor& host)> work;
};

/// How HostWork uses its tensor.
enum class HostUse {
  Reads,  ///< `work` reads the values
  Fills,  ///< `work` writes all of them; the calling thread writes copies back
};

/// Does all of the work. Memory: copies of at most 128 MiB at a time, or of one HostWork if that is
/// more; of offloaded values one chunk if they are read, one HostWork if they are filled.
void on_host_in_parallel(const std::vector<HostWork>& all, HostUse use);

/// Returns true if stored elements of this dtype can be read into the values.
[[nodiscard]] bool can_be_read_as(c10::ScalarType stored, const ShardValues& values);

/// Writes all elements of the entries by `reads`. `source`: such as "the weights"; `folder`: where
/// it is. If one rank fails, every rank throws that rank's Error, and the entries have no values.
/// Collective.
void fill_entries(World& world, std::vector<StateEntry>& entries,
                  const std::vector<HostWork>& reads, const std::string& source,
                  const std::string& folder);

}  // namespace sherd::detail
