#pragma once
// Reads and writes of a file that go on beside the caller.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

namespace sherd::files {

/// Of one open file. Used by one thread.
class Transfers {
 public:
  enum class Direction { Read, Write };
  using Ticket = std::uint64_t;

  Transfers() = default;
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;
  /// Returns when those under way have ended; whether they failed does not matter any more.
  virtual ~Transfers() = default;

  /// Starts to move `bytes` between `data` and `offset` in the file; for direct I/O all three are
  /// multiples of 4,096. `data` must stay until wait(), which is called once for each.
  [[nodiscard]] virtual Ticket start(Direction direction, void* data, std::int64_t bytes,
                                     std::int64_t offset) = 0;
  /// Returns when it has ended. Throws Error(StorageIo) where it failed.
  virtual void wait(Ticket ticket) = 0;
  /// What carries it out, for people: "io_uring".
  [[nodiscard]] virtual const char* name() const = 0;
};

/// By io_uring; null where the system refuses it, or this build has no liburing. `name`: of the
/// file, for messages.
[[nodiscard]] std::unique_ptr<Transfers> transfers_by_io_uring(int descriptor, std::string name);
/// By pread() and pwrite() on threads.
[[nodiscard]] std::unique_ptr<Transfers> transfers_by_threads(int descriptor, std::string name);

/// Throws Error(StorageIo) for an errno value, or 0: the file ends too early.
[[noreturn]] void transfer_failed(const std::string& name, Transfers::Direction direction,
                                  int error);

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

}  // namespace sherd::files
