// How fast a disk moves what offloaded state moves: parts of a file read and written past the page
// cache, many at a time, by nothing but this.
//
//   build/release/bin/disk_mix FOLDER READ_BYTES WRITTEN_BYTES
//
// Reads and writes as many bytes as are told, in turns, as an update does: each part that is
// written was read a while ago. Once for each size of parts and number under way, after a pass that
// writes blocks of the file for the first time; prints one line of JSON: the rate of the fastest,
// both ways together, how it went, and the rates of all.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "files/unnamed_file.h"

namespace {

using sherd::files::Transfers;
using sherd::files::UnnamedFile;
using Direction = Transfers::Direction;

constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

/// How a pass goes.
struct Way {
  std::int64_t part_bytes = 0;
  std::size_t under_way = 0;
};

constexpr Way kWays[] = {{2 << 20, 8}, {2 << 20, 16}, {2 << 20, 32}, {8 << 20, 8}, {8 << 20, 16}};

/// What is moved, from the file's beginning.
struct Mix {
  std::int64_t read_bytes = 0;
  std::int64_t written_bytes = 0;
  [[nodiscard]] std::int64_t file_bytes() const { return std::max(read_bytes, written_bytes); }
};

/// A place in memory, in huge pages, as a disk's controller is told of each page.
class Slot {
 public:
  explicit Slot(std::int64_t bytes)
      : data_(std::aligned_alloc(kHugePageBytes, static_cast<std::size_t>(bytes))) {
    ::madvise(data_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
    std::fill_n(static_cast<char*>(data_), bytes, '\1');
  }
  Slot(Slot&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  Slot& operator=(Slot&&) = delete;
  ~Slot() { std::free(data_); }

  void start(Transfers& transfers, Direction direction, std::int64_t bytes, std::int64_t offset) {
    wait(transfers);
    ticket_ = transfers.start(direction, data_, bytes, offset);
    is_busy_ = true;
  }
  void wait(Transfers& transfers) {
    if (std::exchange(is_busy_, false)) {
      transfers.wait(ticket_);
    }
  }

 private:
  void* data_;
  Transfers::Ticket ticket_ = 0;
  bool is_busy_ = false;
};

/// Whether by part `index` of `parts` another of `wanted` parts is due, spread evenly.
bool is_due(std::int64_t index, std::int64_t parts, std::int64_t wanted) {
  return (index + 1) * wanted / parts > index * wanted / parts;
}

// Seconds of one pass.
double move_all(Transfers& transfers, const Mix& mix, const Way& way, std::int64_t begin) {
  std::vector<Slot> slots;
  for (std::size_t i = 0; i < way.under_way; ++i) {
    slots.emplace_back(way.part_bytes);
  }
  const std::int64_t parts = mix.file_bytes() / way.part_bytes;
  const std::int64_t reads = mix.read_bytes / way.part_bytes;
  const std::int64_t writes = mix.written_bytes / way.part_bytes;
  const auto ahead = static_cast<std::int64_t>(slots.size() / 2);
  const auto start_time = std::chrono::steady_clock::now();
  std::size_t next = 0;
  const auto start = [&](Direction direction, std::int64_t part) {
    slots[next++ % slots.size()].start(transfers, direction, way.part_bytes,
                                       begin + part * way.part_bytes);
  };
  for (std::int64_t part = 0; part < parts + ahead; ++part) {
    if (part < parts && is_due(part, parts, reads)) {
      start(Direction::Read, part);
    }
    if (part >= ahead && is_due(part - ahead, parts, writes)) {
      start(Direction::Write, part - ahead);
    }
  }
  for (Slot& slot : slots) {
    slot.wait(transfers);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_time).count();
}

std::int64_t whole_parts(const char* text) {
  constexpr std::int64_t kLargest = std::int64_t{8} << 20;
  return (std::strtoll(text, nullptr, 10) + kLargest - 1) / kLargest * kLargest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: disk_mix FOLDER READ_BYTES WRITTEN_BYTES\n");
    return EXIT_FAILURE;
  }
  const Mix mix{whole_parts(argv[2]), whole_parts(argv[3])};
  if (mix.file_bytes() <= 0) {
    std::fprintf(stderr, "disk_mix: READ_BYTES or WRITTEN_BYTES has to be above 0\n");
    return EXIT_FAILURE;
  }
  UnnamedFile file(argv[1]);
  const std::int64_t begin = file.allocate(mix.file_bytes());
  const auto moved = static_cast<double>(mix.read_bytes + mix.written_bytes);
  move_all(file.transfers(), {0, mix.file_bytes()}, kWays[0], begin);
  double best = 0;
  Way fastest;
  std::string all;
  for (const Way& way : kWays) {
    const double rate = moved / move_all(file.transfers(), mix, way, begin);
    all += (all.empty() ? "" : ", ") + std::to_string(static_cast<std::int64_t>(rate));
    if (rate > best) {
      best = rate;
      fastest = way;
    }
  }
  std::printf(
      "{\"bytes_per_second\": %.0f, \"part_bytes\": %lld, \"under_way\": %zu, \"all\": [%s], "
      "\"by\": \"%s\"}\n",
      best, static_cast<long long>(fastest.part_bytes), fastest.under_way, all.c_str(),
      file.description().c_str());
}
