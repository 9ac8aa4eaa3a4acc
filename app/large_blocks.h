#pragma once
// Memory of large tensors: pages that move to where they are needed.

#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace app {

/// Allocates memory in pages of 2 MiB, outside malloc, and keeps freed pages. A free page serves
/// any block: mremap(2) moves it to the block's addresses, without a copy and without zeroing by
/// the kernel. Free memory therefore never fragments, whatever the sizes. Thread-safe. Source: Guo
/// et al., GMLake, ASPLOS 2024, which does the same on GPUs.
class LargeBlocks {
 public:
  static constexpr std::size_t kPageBytes = std::size_t{2} << 20;

  LargeBlocks() = default;
  LargeBlocks(const LargeBlocks&) = delete;
  LargeBlocks& operator=(const LargeBlocks&) = delete;
  /// Returns all memory to the system, also blocks in use.
  ~LargeBlocks();

  /// Returns a page-aligned block with undefined content; nullptr if the system has no memory.
  [[nodiscard]] void* take(std::size_t bytes);
  /// Frees a block. Returns false if it did not come from take().
  bool put_back(void* block);
  /// Returns the free pages to the system.
  void give_back_free();
  /// Bytes of blocks in use and of free pages.
  [[nodiscard]] std::size_t held_bytes() const;

 private:
  // Consecutive addresses. A piece was mapped by one call: mremap(2) moves no more than that.
  struct Range {
    char* begin;
    std::vector<std::size_t> piece_bytes;
  };
  using FreeRanges = std::multimap<std::size_t, Range>;  // by their bytes

  [[nodiscard]] Range take_free(FreeRanges::iterator found, std::size_t bytes);
  [[nodiscard]] Range put_together(std::size_t bytes);
  void unmap_free();

  mutable std::mutex mutex_;
  std::unordered_map<char*, Range> used_;
  FreeRanges free_;
};

}  // namespace app
