#pragma once
// A log of one JSON object a line.

#include <cstdint>
#include <fstream>
#include <string>

namespace llm::track {

/// Appends records to a file, each written through at once, so that a run that ends early has told
/// all it did.
class JsonlLog {
 public:
  /// Opens `path`. A resumed run keeps the records up to `steps_done` and drops later ones, so that
  /// no step stands there twice; with 0 the file begins anew. Throws sherd::Error(CannotWrite),
  /// naming the path.
  JsonlLog(const std::string& path, std::int64_t steps_done);

  /// Writes one object. Throws sherd::Error(StorageIo).
  void write(const std::string& json);
  /// Returns when what was written is on the disk, so that a power cut does not take lines of steps
  /// whose checkpoint is there. Throws sherd::Error(StorageIo).
  void sync();

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace llm::track
