#pragma once
// A model's state as a list: each parameter and buffer, and which rank holds which elements of it.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

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
  std::vector<Range> pieces;  ///< by shard rank: which elements it sends where all are wanted
  int64_t begin = 0;          ///< the first element of `mine`
  ShardValues mine;           ///< [n] what this rank holds; writing to it writes the state
  at::Tensor buffer;          ///< of a buffer: the module's tensor, whole on every rank
  bool trainable = true;      ///< when sharded; true of a buffer, which training may change
  bool is_written = true;     ///< false: built on meta and without values yet
  bool* has_values = nullptr;

  [[nodiscard]] bool is_buffer() const { return buffer.defined(); }
  [[nodiscard]] int64_t numel() const;
  /// "parameter 'name'" or "buffer 'name'".
  [[nodiscard]] std::string described() const;
  /// Why `tensor` cannot be the whole of it, as text; empty if it can.
  [[nodiscard]] std::string mismatch(const at::Tensor& tensor) const;
  /// Writes the elements [first, first + values.numel()) of the whole that this rank holds.
  void write(int64_t first, const at::Tensor& values);
  /// A parameter has no values until finish_writing().
  void begin_writing();
  /// All elements have been written.
  void finish_writing();
};

/// Parameters in registration order, then buffers. Buffers are sent by the first shard rank.
[[nodiscard]] std::vector<StateEntry> state_entries(ShardedModule& model);

/// Which rank of the world sends each shard rank's pieces: that of the first replica. Collective.
[[nodiscard]] std::vector<int> senders(ShardedModule& model);

}  // namespace sherd::detail
