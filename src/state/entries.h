#pragma once
// A model's state as a list of parameters and buffers, with the elements that each rank holds; and
// ways to read and write them: from other ranks, and through host memory on all threads.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/optim.h"
#include "sherd/sharded_module.h"
#include "unit/shard_layout.h"
#include "unit/shard_values.h"

namespace sherd::detail {

/// One tensor of a model's state.
struct StateEntry {
  std::string name;                  ///< qualified, of its first owner
  std::vector<std::string> aliases;  ///< its other names
  std::vector<int64_t> shape;
  c10::ScalarType original_dtype = c10::ScalarType::Float;
  std::vector<Range> pieces = {};  ///< by shard rank: the elements that it sends
  int64_t begin = 0;               ///< the first element of `mine`
  ShardValues mine;                ///< [n] this rank's elements; writing to it writes the state
  at::Tensor buffer = {};          ///< of a buffer: the module's tensor, whole on every rank
  bool trainable = true;           ///< when sharded; true of a buffer, which training may change
  bool is_written = true;          ///< false: built on meta and without values yet
  bool* has_values = nullptr;

  [[nodiscard]] bool is_buffer() const { return buffer.defined(); }
  [[nodiscard]] int64_t numel() const;
  /// Returns all names, the first owner's first.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Returns "parameter 'name'" or "buffer 'name'".
  [[nodiscard]] std::string described() const;
  /// Returns why a tensor of this shape, or of this dtype, does not fit; empty if it does.
  [[nodiscard]] std::string shape_fault(at::IntArrayRef given) const;
  [[nodiscard]] std::string dtype_fault(c10::ScalarType given) const;
  /// Returns why `tensor` cannot be the whole of it; empty if it can.
  [[nodiscard]] std::string mismatch(const at::Tensor& tensor) const;
  /// Writes this rank's part of the elements [first, first + values.numel()) of the whole.
  void write(int64_t first, const at::Tensor& values);
  /// Marks a parameter as one without values until finish_writing().
  void begin_writing();
  /// Called after all elements have been written.
  void finish_writing();
};

/// Returns parameters in registration order, then buffers. The first shard rank sends buffers.
[[nodiscard]] std::vector<StateEntry> state_entries(ShardedModule& model);

/// Throws Error(BadData) with `what` and the faults, unless there are none.
void check_no_faults(const std::string& what, const std::string& faults);

/// A tensor of which this rank holds a range, as checkpoints name it.
struct HeldTensor {
  std::string kind;    ///< "value", or one of OptimizerShard
  std::string name;    ///< of the parameter or buffer
  int64_t begin = 0;   ///< the first element of `values` in the whole tensor
  ShardValues values;  ///< not empty
};

/// Returns the values of the entries, and the tensors of an optimizer's `shards` of them.
[[nodiscard]] std::vector<HeldTensor> held_tensors(const std::vector<StateEntry>& entries,
                                                   const std::vector<OptimizerShard>& shards);

/// Returns by shard rank the world's rank that sends its pieces: the first replica's. Collective.
[[nodiscard]] std::vector<int> senders(ShardedModule& model);

/// Sends `numel` elements of rank `root`'s `source` [numel] to all ranks as `dtype`. Calls
/// `take(first, values)` on every rank, the root too, with chunks in order; `values` is valid
/// during the call. Collective. Memory: 1 MiB; none on the root if nothing is converted.
void broadcast_elements(World& world, int root, const at::Tensor& source, int64_t numel,
                        c10::ScalarType dtype,
                        const std::function<void(int64_t first, const at::Tensor& values)>& take);

/// Calls fn(i) for each i below `count`, on all threads of the rank, in any order. Rethrows the
/// first exception; calls that have not begun by then are left out.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& fn);

/// Values and the work on them. `work` receives them, from element `first` on, as a host tensor [n]
/// in their dtype: in place, or a copy if they are on a device, in two halves or offloaded. It is
/// called once, on any thread; for offloaded values that are read with chunks in order.
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
/// it is. If one rank fails, every rank throws that rank's Error, and the parameters have no
/// values. Collective.
void fill_entries(World& world, std::vector<StateEntry>& entries,
                  const std::vector<HostWork>& reads, const std::string& source,
                  const std::string& folder);

}  // namespace sherd::detail
