#pragma once
// The log of an offline run of Weights & Biases.

#include <cstddef>
#include <string>
#include <string_view>

#include "files/appended_file.h"

namespace llm::track {

/// A file run-ID.wandb: seven bytes of its own, then records in blocks of 32 KiB as LevelDB's logs
/// have them, with the CRC-32 of zlib over type and bytes.
class WandbLog {
 public:
  /// Throws sherd::Error: CannotWrite, StorageIo.
  explicit WandbLog(const std::string& path);

  /// Throws sherd::Error(StorageIo).
  void write(std::string_view record);
  /// Throws sherd::Error(StorageIo).
  void sync() { file_.sync(); }

 private:
  sherd::files::AppendedFile file_;
  std::size_t size_bytes_ = 0;
};

}  // namespace llm::track
