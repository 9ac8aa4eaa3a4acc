#pragma once
// What transfers are cut into, and how far each of them is.

#include <algorithm>
#include <cstdint>

#include "storage/transfers.h"

namespace sherd::detail {

/// A stretch of a transfer.
struct TransferPart {
  Transfers::Ticket ticket = 0;
  Transfers::Direction direction = Transfers::Direction::Read;
  char* data = nullptr;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  ///< in the file

  /// `done` bytes of it have been moved.
  void advance(std::int64_t done) {
    data += done;
    bytes -= done;
    offset += done;
  }
};

/// How far a transfer is.
struct TransferProgress {
  Transfers::Direction direction = Transfers::Direction::Read;
  int parts_left = 0;
  bool failed = false;
  int error = 0;  ///< errno, or 0 where the file ended

  void fail(int reason) {
    error = failed ? error : reason;
    failed = true;
  }
};

/// Appends the parts of `whole`, of `part_bytes` at most, to a sequence; how many there are.
template <class Parts>
int cut(const TransferPart& whole, std::int64_t part_bytes, Parts& parts) {
  int count = 0;
  for (std::int64_t begin = 0; begin < whole.bytes; begin += part_bytes, ++count) {
    parts.push_back({whole.ticket, whole.direction, whole.data + begin,
                     std::min(part_bytes, whole.bytes - begin), whole.offset + begin});
  }
  return count;
}

}  // namespace sherd::detail
