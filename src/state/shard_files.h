#pragma once
// The shard files of a checkpoint, read with their digests checked.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/checkpoint.h"
#include "sherd/safetensors.h"
#include "unit/shard_layout.h"

namespace sherd::detail {

/// What one digest of a manifest covers: a range of a tensor's elements in a shard file.
struct ShardBlock {
  const SafetensorsFile* file = nullptr;
  const SafetensorsEntry* entry = nullptr;
  Range elements;  ///< of the tensor in the file
  std::string sha256;
};

/// How many blocks of `block_bytes` a tensor of `bytes` bytes has; 1 for 0, a digest of the whole.
[[nodiscard]] int64_t blocks_in(int64_t bytes, int64_t block_bytes);

/// Reads the whole block and checks its digest. `wanted` is a range of the tensor's elements; those
/// that lie in the block are converted into `out` [wanted.size()], a tensor of the host, before the
/// digest is known: `out` must not be used after an Error. Safe from several threads. Memory: 1
/// MiB. Throws Error(BadData), naming file, tensor and elements.
void read_verified(const ShardBlock& block, const Range& wanted, const at::Tensor& out);

/// The files of one checkpoint's folder, opened when first needed.
class ShardFiles {
 public:
  explicit ShardFiles(std::string folder) : folder_(std::move(folder)) {}

  /// The blocks that hold any of the elements `wanted` of a piece's tensor: `kind` is "value" or
  /// one of OptimizerShard, `block_bytes` that of the manifest. Reads the file's header alone.
  /// Throws as SafetensorsFile, and Error(BadData), naming file and tensor, where the file does not
  /// hold what the manifest says.
  [[nodiscard]] std::vector<ShardBlock> blocks(const CheckpointPiece& piece,
                                               const std::string& kind,
                                               const std::string& parameter, int64_t block_bytes,
                                               const Range& wanted);

  /// Refuses a tensor of an opened file for whose blocks nobody has asked: the manifest does not
  /// name it. Throws Error(BadData).
  void check_all_named() const;

 private:
  const SafetensorsFile& open(const std::string& name);

  std::string folder_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::set<std::string> named_;
};

}  // namespace sherd::detail
