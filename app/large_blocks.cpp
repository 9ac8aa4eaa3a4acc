#include "app/large_blocks.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <utility>

#include <sys/mman.h>

namespace app {

namespace {

constexpr std::size_t kPageBytes = LargeBlocks::kPageBytes;

bool is_on_page(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kPageBytes == 0;
}

// Maps new aligned pages; nullptr if the system has none.
char* map_pages(std::size_t bytes) {
  void* const mapped = ::mmap(nullptr, bytes + kPageBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  const std::size_t past = reinterpret_cast<std::uintptr_t>(mapped) % kPageBytes;
  const std::size_t before = past == 0 ? 0 : kPageBytes - past;
  char* const begin = static_cast<char*>(mapped) + before;
  if (before > 0) {
    ::munmap(mapped, before);
  }
  ::munmap(begin + bytes, kPageBytes - before);
  ::madvise(begin, bytes, MADV_HUGEPAGE);  // a wish: some kernels have no huge pages
  return begin;
}

// Moves pages with their content to `to`, replacing the pages there.
bool move_pages(char* from, std::size_t bytes, char* to) {
  return ::mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
}

std::size_t sum(const std::vector<std::size_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::size_t{0});
}

}  // namespace

LargeBlocks::~LargeBlocks() {
  unmap_free();
  for (const auto& [begin, range] : used_) {
    ::munmap(begin, sum(range.piece_bytes));
  }
}

void* LargeBlocks::take(std::size_t bytes) {
  if (bytes > SIZE_MAX / 2) {
    return nullptr;
  }
  const std::size_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::lock_guard lock(mutex_);
  const auto found = free_.lower_bound(whole);
  Range range = found == free_.end() ? put_together(whole) : take_free(found, whole);
  char* const begin = range.begin;
  if (begin != nullptr) {
    used_.emplace(begin, std::move(range));
  }
  return begin;
}

// The first `bytes` of a free range.
LargeBlocks::Range LargeBlocks::take_free(FreeRanges::iterator found, std::size_t bytes) {
  Range rest = std::move(found->second);
  const std::size_t rest_bytes = found->first - bytes;
  free_.erase(found);
  Range taken{rest.begin, {}};
  auto piece = rest.piece_bytes.begin();
  std::size_t missing = bytes;
  while (missing > 0) {
    const std::size_t part = std::min(missing, *piece);
    taken.piece_bytes.push_back(part);
    missing -= part;
    *piece -= part;
    piece += *piece == 0 ? 1 : 0;
  }
  rest.piece_bytes.erase(rest.piece_bytes.begin(), piece);
  rest.begin += bytes;
  if (rest_bytes > 0) {
    free_.emplace(rest_bytes, std::move(rest));
  }
  return taken;
}

// Free pages from anywhere, of the largest ranges first, then new ones.
LargeBlocks::Range LargeBlocks::put_together(std::size_t bytes) {
  Range made{map_pages(bytes), {}};
  std::size_t filled = 0;
  while (made.begin != nullptr && filled < bytes && !free_.empty()) {
    const auto largest = std::prev(free_.end());
    const Range from = take_free(largest, std::min(largest->first, bytes - filled));
    char* place = from.begin;
    for (const std::size_t piece : from.piece_bytes) {
      if (!move_pages(place, piece, made.begin + filled)) {
        // As many mappings as a process may have. Begin again without those of the free pages.
        ::munmap(made.begin, filled);
        ::munmap(place, static_cast<std::size_t>(from.begin + sum(from.piece_bytes) - place));
        unmap_free();
        return {map_pages(bytes), {bytes}};
      }
      made.piece_bytes.push_back(piece);
      place += piece;
      filled += piece;
    }
  }
  if (filled < bytes) {
    made.piece_bytes.push_back(bytes - filled);
  }
  return made;
}

bool LargeBlocks::put_back(void* block) {
  if (!is_on_page(block)) {
    return false;  // without the lock: small blocks come here too
  }
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(static_cast<char*>(block));
  if (found == used_.end()) {
    return false;
  }
  const std::size_t bytes = sum(found->second.piece_bytes);
  free_.emplace(bytes, std::move(found->second));
  used_.erase(found);
  return true;
}

void LargeBlocks::give_back_free() {
  const std::lock_guard lock(mutex_);
  unmap_free();
}

void LargeBlocks::unmap_free() {
  for (const auto& [bytes, range] : free_) {
    ::munmap(range.begin, bytes);
  }
  free_.clear();
}

std::size_t LargeBlocks::held_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [begin, range] : used_) {
    bytes += sum(range.piece_bytes);
  }
  for (const auto& [size, range] : free_) {
    bytes += size;
  }
  return bytes;
}

}  // namespace app
