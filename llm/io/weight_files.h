#pragma once
// The weights of a model folder, written.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/safetensors.h"

namespace llm::io {

/// Writes weights as transformers does: `model.safetensors`; or, where that would hold more than
/// `max_file_bytes` bytes of tensors, `model-00001-of-00003.safetensors` and so on, with their
/// index `model.safetensors.index.json`. Tensors keep their order; one that is larger than the
/// limit has a file of its own. Every file appears whole or not at all, the index last. Not
/// collective.
class WeightFiles {
 public:
  /// The default of transformers' `save_pretrained(max_shard_size=…)`.
  static constexpr std::int64_t kMaxFileBytes = 5'000'000'000;

  /// Reserves the disk space of all files. Throws sherd::Error as sherd::SafetensorsWriter does.
  /// `stem`: how the files are called in place of "model".
  WeightFiles(std::string folder, const std::vector<sherd::SafetensorsSpec>& tensors,
              std::int64_t max_file_bytes = kMaxFileBytes, std::string stem = "model");

  /// Appends values to a tensor, in its dtype. At most 2 GiB wait to be durable: else the last
  /// fsync would be a long silence. Throws sherd::Error: StorageIo, and Usage as SafetensorsWriter.
  void write(const std::string& name, const at::Tensor& values);
  /// Makes all files durable and gives them their names. Throws as SafetensorsWriter::finish(), and
  /// sherd::Error(CannotWrite) for the index.
  void finish();
  /// The size of the weights' files, without the index.
  [[nodiscard]] std::int64_t file_bytes() const;

 private:
  std::string folder_;
  std::string stem_;
  std::vector<std::string> names_;  ///< of the files
  std::vector<sherd::SafetensorsWriter> files_;
  std::map<std::string, std::size_t> file_of_tensor_;
  std::int64_t tensor_bytes_ = 0;
  std::int64_t unsynced_bytes_ = 0;
};

}  // namespace llm::io
