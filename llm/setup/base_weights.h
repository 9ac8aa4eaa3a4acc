#pragma once
// The weights that a run leaves as they are, known by their content: a checkpoint of the trained
// part is nothing without them.

#include <cstdint>
#include <string>
#include <vector>

namespace llm::setup {

/// A file of weights as it was when it was read.
struct WeightFile {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< since the epoch
  bool operator==(const WeightFile&) const = default;
};

/// The weights of a model folder. None where `sha256` is empty.
struct BaseWeights {
  /// Over the names, dtypes, shapes and bytes of all tensors, however they are cut into files.
  std::string sha256 = {};
  std::vector<WeightFile> files = {};  ///< in the order of their names
  std::string folder = {};             ///< canonical; empty in older checkpoints
  [[nodiscard]] bool empty() const { return sha256.empty(); }
  bool operator==(const BaseWeights&) const = default;
};

/// Returns the weights of a folder. Reads each byte once, on all threads, unless folder, names,
/// sizes and times of all files are those of `known`: then its digest is taken. Not collective.
/// Memory: 1 MiB per thread. Throws sherd::Error as sherd::SafetensorsFolder does; StorageIo.
[[nodiscard]] BaseWeights base_weights(const std::string& folder, const BaseWeights& known = {});

/// Checks that a folder has the weights over which a checkpoint was trained; anything where `base`
/// is empty. `advice`: what to do, the end of the message. Not collective. Throws
/// sherd::Error(BadData), naming both digests, and as base_weights().
void require_base(const std::string& folder, const BaseWeights& base, const std::string& checkpoint,
                  const std::string& advice);

}  // namespace llm::setup
