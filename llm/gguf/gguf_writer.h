#pragma once
// Writes GGUF files, version 3.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "files/output.h"
#include "llm/gguf/gguf_value.h"

namespace llm::gguf {

/// A GGUF file in the making: it has another name until finish(), and is gone without it.
class GgufWriter {
 public:
  /// Writes keys and the list of tensors, whose offsets are set here, and takes the disk space of
  /// all. Throws sherd::Error: CannotWrite, StorageIo.
  GgufWriter(const std::string& path, const std::vector<KeyValue>& keys,
             std::vector<TensorInfo> tensors);

  /// Writes a whole tensor, which has `bytes` bytes in its type. Throws sherd::Error(StorageIo).
  void write(const std::string& name, const void* data, std::uint64_t bytes);
  /// Gives the file its name, when every tensor is written. Throws sherd::Error(StorageIo).
  void finish();
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }

 private:
  sherd::files::NewFile file_;
  std::map<std::string, TensorInfo> missing_;
  std::uint64_t data_begin_ = 0;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace llm::gguf
