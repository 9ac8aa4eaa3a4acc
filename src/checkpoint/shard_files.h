#pragma once
// The shard files of a checkpoint, read with their digests checked.

#include <map>
#include <memory>
#include <set>
#include <string>

#include "sherd/checkpoint.h"
#include "sherd/safetensors.h"

namespace sherd::detail {

/// The files of one checkpoint's folder, opened when first needed.
class ShardFiles {
 public:
  explicit ShardFiles(std::string folder) : folder_(std::move(folder)) {}

  /// Throws as SafetensorsFile.
  const SafetensorsFile& open(const std::string& name);
  /// The tensor of a piece: `kind` is "value" or one of OptimizerShard. Its digest has been found
  /// right, by reading all of it the first time. Throws Error(BadData), naming file and tensor.
  /// Memory: 1 MiB.
  const SafetensorsEntry& verified(const CheckpointPiece& piece, const std::string& kind,
                                   const std::string& parameter);

  /// Refuses a tensor of an opened file that has not been verified: the manifest does not name it.
  /// Throws as `verified`.
  void check_all_verified() const;

 private:
  std::string folder_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::set<std::string> verified_;
};

}  // namespace sherd::detail
