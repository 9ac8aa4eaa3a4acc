#include "llm/track/wandb_log.h"

#include <algorithm>
#include <cstdint>

#include "llm/track/crc32.h"
#include "llm/track/little_endian.h"

namespace llm::track {

namespace {

constexpr std::size_t kBlockBytes = 32768;
constexpr std::size_t kHeaderBytes = 7;  // of a part, and of the file
constexpr std::uint16_t kMagic = 0xbee1;
constexpr std::uint8_t kVersion = 0;

// A record, or its parts where it crosses the end of a block.
enum class Part : std::uint8_t { Full = 1, First = 2, Middle = 3, Last = 4 };

Part part_of(bool first, bool last) {
  if (first) {
    return last ? Part::Full : Part::First;
  }
  return last ? Part::Last : Part::Middle;
}

std::string file_header() {
  std::string bytes = ":W&B";
  append_little_endian(bytes, kMagic);
  append_little_endian(bytes, kVersion);
  return bytes;
}

void append_part(std::string& bytes, Part part, std::string_view data) {
  const char type[] = {static_cast<char>(part)};
  append_little_endian(bytes, crc32(data, crc32({type, 1})));
  append_little_endian(bytes, static_cast<std::uint16_t>(data.size()));
  bytes.push_back(type[0]);
  bytes += data;
}

}  // namespace

WandbLog::WandbLog(const std::string& path) : file_(path), size_bytes_(kHeaderBytes) {
  file_.append(file_header());
}

void WandbLog::write(std::string_view record) {
  std::string bytes;
  for (bool first = true;; first = false) {
    std::size_t room = kBlockBytes - (size_bytes_ + bytes.size()) % kBlockBytes;
    if (room < kHeaderBytes) {
      bytes.append(room, '\0');
      room = kBlockBytes;
    }
    const std::string_view data = record.substr(0, room - kHeaderBytes);
    record.remove_prefix(data.size());
    append_part(bytes, part_of(first, record.empty()), data);
    if (record.empty()) {
      break;
    }
  }
  file_.append(bytes);
  size_bytes_ += bytes.size();
}

}  // namespace llm::track
