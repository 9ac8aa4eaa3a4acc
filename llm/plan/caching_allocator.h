#pragma once
// LibTorch's caching allocator of GPUs, played without memory.

#include <cstdint>
#include <list>
#include <set>

namespace llm::plan {

/// Counts the segments that the caching allocator takes from the device for a sequence of
/// allocations, and so also what lies idle between its blocks. Blocks of at most 1 MiB lie in
/// segments of 2 MiB, those below 10 MiB in segments of 20 MiB, and larger ones in segments of
/// their own, in multiples of 2 MiB. A free block serves a smaller request: the smallest that is
/// large enough, which is split; neighbours that are free are joined. Segments are never given
/// back. All blocks are of one stream. PyTorch: `CUDACachingAllocator`, without expandable
/// segments.
class CachingAllocator {
 public:
  /// A range of a segment, in use or free.
  struct Block {
    std::int64_t bytes = 0;  ///< rounded up to 512
    std::int64_t address = 0;
    bool is_small = false;
    bool is_free = false;
    Block* before = nullptr;  ///< neighbours in the segment
    Block* after = nullptr;
    std::list<Block>::iterator self = {};
  };

  /// A block of at least `bytes`, owned by the allocator.
  [[nodiscard]] Block* allocate(std::int64_t bytes);
  /// Takes back what allocate() returned.
  void free(Block* block);
  /// Of all segments. PyTorch: `torch.cuda.memory_reserved`.
  [[nodiscard]] std::int64_t reserved_bytes() const { return reserved_bytes_; }

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
    }
  };
  using FreeBlocks = std::set<Block*, BySize>;

  Block* new_block(const Block& block);
  Block* take_free(std::int64_t bytes, bool is_small);
  void split(Block* block, std::int64_t bytes);
  void join_with_after(Block* block);
  FreeBlocks& free_blocks(const Block* block) { return block->is_small ? small_ : large_; }

  std::list<Block> blocks_;
  FreeBlocks small_;
  FreeBlocks large_;
  std::int64_t reserved_bytes_ = 0;
};

}  // namespace llm::plan
