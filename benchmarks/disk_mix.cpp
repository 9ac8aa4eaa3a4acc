// How fast a disk moves what an offloaded optimizer moves: stretches of a file read, and written
// back, past the page cache, several at a time, by nothing but this.
//
//   build/release/bin/disk_mix FOLDER BYTES
//
// Reads and writes BYTES once, in parts of 2 MiB, 16 of them under way; prints one line of JSON:
// the bytes moved, both ways together, a second.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "offload/offload_file.h"

namespace {

constexpr std::int64_t kPart = std::int64_t{2} << 20;
constexpr std::size_t kUnderWay = 16;

using sherd::detail::OffloadFile;
using sherd::detail::Transfers;

struct Slot {
  void* data = nullptr;
  Transfers::Ticket ticket = 0;
  bool busy = false;
};

void move_all(Transfers& transfers, std::vector<Slot>& slots, std::int64_t begin,
              std::int64_t parts) {
  const auto wait = [&](Slot& slot) {
    if (slot.busy) {
      transfers.wait(slot.ticket);
      slot.busy = false;
    }
  };
  const auto start = [&](Transfers::Direction direction, std::int64_t part) {
    Slot& slot = slots[static_cast<std::size_t>(part) % slots.size()];
    wait(slot);
    slot = {slot.data, transfers.start(direction, slot.data, kPart, begin + part * kPart), true};
  };
  const auto ahead = static_cast<std::int64_t>(slots.size() / 2);
  for (std::int64_t part = 0; part < parts + ahead; ++part) {
    if (part < parts) {
      start(Transfers::Direction::Read, part);
    }
    if (part >= ahead) {
      start(Transfers::Direction::Write, part - ahead);
    }
  }
  for (Slot& slot : slots) {
    wait(slot);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: disk_mix FOLDER BYTES\n");
    return EXIT_FAILURE;
  }
  const std::int64_t parts = std::max<std::int64_t>(1, std::strtoll(argv[2], nullptr, 10) / kPart);
  OffloadFile file(argv[1]);
  const std::int64_t begin = file.allocate(parts * kPart);
  std::vector<Slot> slots(kUnderWay);
  for (Slot& slot : slots) {
    slot.data = std::aligned_alloc(kPart, kPart);
  }
  move_all(file.transfers(), slots, begin,
           parts);  // blocks of the file are written for the first time
  const auto start = std::chrono::steady_clock::now();
  move_all(file.transfers(), slots, begin, parts);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (const Slot& slot : slots) {
    std::free(slot.data);
  }
  std::printf("{\"bytes_per_second\": %.0f, \"by\": \"%s\"}\n",
              static_cast<double>(2 * parts * kPart) / seconds.count(), file.description().c_str());
}
