#include "app/memory_arena.h"

#include <algorithm>
#include <iterator>

#include <sys/mman.h>

#include "llm/train/peak_memory.h"

namespace app {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kGranule = std::size_t{64} << 10;  // sizes are multiples of it
// The kernel promises memory that it does not have, and kills who uses it. So the system is asked
// first, once for so many bytes: asking each time would cost more than mapping.
constexpr std::size_t kAskedFor = std::size_t{1} << 30;
// Where there is room to grow: programs, libraries and what others map lie far above or below.
constexpr std::uintptr_t kStart = std::uintptr_t{1} << 44;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool is_available(std::size_t bytes) {
  const std::int64_t available = llm::train::available_memory_bytes(/*local_ranks=*/1);
  return available == 0 || bytes <= static_cast<std::size_t>(available);
}

char* map(char* place, std::size_t bytes, int flags) {
  void* start =
      mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return start == MAP_FAILED ? nullptr : static_cast<char*>(start);
}

// Anywhere on a huge page's boundary; null where the system has none.
char* map_elsewhere(std::size_t bytes) {
  char* start = map(nullptr, bytes + kHugePage, 0);
  if (start == nullptr) {
    return nullptr;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t before = rounded_up(address, kHugePage) - address;
  if (before > 0) {
    munmap(start, before);
  }
  munmap(start + before + bytes, kHugePage - before);
  return start + before;
}

// At `place` where that is free, else anywhere; null where the system has none.
char* map_at(char* place, std::size_t bytes) {
  char* start = map(place, bytes, MAP_FIXED_NOREPLACE);
  if (start != place) {  // an old kernel takes the place as a wish
    if (start != nullptr) {
      munmap(start, bytes);
    }
    start = map_elsewhere(bytes);
  }
  if (start != nullptr) {
    madvise(start, bytes, MADV_HUGEPAGE);
  }
  return start;
}

}  // namespace

void* MemoryArena::take(std::size_t bytes) {
  bytes = rounded_up(bytes, kGranule);
  const std::lock_guard lock(mutex_);
  void* block = take_from_gap(bytes);
  if (block == nullptr) {
    if (!grow(bytes)) {
      give_gaps_back();
      if (!grow(bytes)) {
        return nullptr;
      }
    }
    block = take_from_gap(bytes);
  }
  used_[block] = bytes;
  used_bytes_ += bytes;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  return block;
}

bool MemoryArena::put_back(void* block) {
  if (reinterpret_cast<std::uintptr_t>(block) % kGranule != 0) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(block);
  if (found == used_.end()) {
    return false;
  }
  add_gap(static_cast<char*>(block), found->second);
  used_bytes_ -= found->second;
  used_.erase(found);
  return true;
}

ArenaCounts MemoryArena::counts() {
  const std::lock_guard lock(mutex_);
  return {static_cast<std::int64_t>(mapped_bytes_), static_cast<std::int64_t>(most_used_bytes_),
          growths_};
}

// Of gaps of one size the lowest: what is high is freed for longer.
void* MemoryArena::take_from_gap(std::size_t bytes) {
  auto best = gaps_.end();
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second >= bytes && (best == gaps_.end() || gap->second < best->second)) {
      best = gap;
    }
  }
  if (best == gaps_.end()) {
    return nullptr;
  }
  const auto [start, size] = *best;
  gaps_.erase(best);
  if (size > bytes) {
    gaps_.emplace(start + bytes, size - bytes);
  }
  return start;
}

// Makes a gap of at least so many bytes, of the last one where that is at the end.
bool MemoryArena::grow(std::size_t bytes) {
  if (bytes > kStart) {
    return false;
  }
  const bool has_last = !gaps_.empty() && gaps_.rbegin()->first + gaps_.rbegin()->second == end_;
  const std::size_t missing = bytes - (has_last ? gaps_.rbegin()->second : 0);
  std::size_t added = rounded_up(missing, kHugePage);
  unasked_bytes_ += added;
  if (unasked_bytes_ >= kAskedFor) {
    if (!is_available(added)) {
      return false;
    }
    unasked_bytes_ = 0;
  }
  char* wanted = end_ == nullptr ? reinterpret_cast<char*>(kStart) : end_;
  char* start = map_at(wanted, added);
  if (start != nullptr && start != wanted && has_last) {  // elsewhere: the whole block lies there
    munmap(start, added);
    added = rounded_up(bytes, kHugePage);
    start = map_at(wanted, added);
  }
  if (start == nullptr) {
    return false;
  }
  end_ = start + added;
  mapped_bytes_ += added;
  ++growths_;
  add_gap(start, added);
  return true;
}

void MemoryArena::add_gap(char* start, std::size_t bytes) {
  auto next = gaps_.lower_bound(start);
  if (next != gaps_.end() && start + bytes == next->first) {
    bytes += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      previous->second += bytes;
      return;
    }
  }
  gaps_.emplace(start, bytes);
}

void MemoryArena::give_gaps_back() {
  for (const auto& [start, bytes] : gaps_) {
    munmap(start, bytes);
    mapped_bytes_ -= bytes;
    if (start + bytes == end_) {
      end_ = start;
    }
  }
  gaps_.clear();
}

}  // namespace app
