#include "llm/train/peak_memory.h"

#include <fstream>
#include <string>

namespace llm::train {

namespace {

// The number of KiB on the line that begins with `field`.
std::int64_t bytes_of(const char* path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field, 0) == 0) {
      return std::stoll(line.substr(field.size())) * 1024;
    }
  }
  return 0;
}

}  // namespace

std::int64_t peak_resident_bytes() {
  return bytes_of("/proc/self/status", "VmHWM:");
}

std::int64_t proportional_resident_bytes() {
  return bytes_of("/proc/self/smaps_rollup", "Pss:");
}

}  // namespace llm::train
