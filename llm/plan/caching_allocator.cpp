#include "llm/plan/caching_allocator.h"

#include <algorithm>

namespace llm::plan {

namespace {

constexpr std::int64_t kMebi = std::int64_t{1} << 20;
constexpr std::int64_t kUnit = 512;
constexpr std::int64_t kLargestSmall = kMebi;
constexpr std::int64_t kLeastOfItsOwn = 10 * kMebi;  // a segment
constexpr std::int64_t kSmallSegment = 2 * kMebi, kSharedSegment = 20 * kMebi;

std::int64_t to_multiple(std::int64_t bytes, std::int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::int64_t segment_for(std::int64_t bytes) {
  return bytes <= kLargestSmall   ? kSmallSegment
         : bytes < kLeastOfItsOwn ? kSharedSegment
                                  : to_multiple(bytes, kSmallSegment);
}

// Less than that stays with the block that it is behind.
bool is_worth_splitting(std::int64_t rest, bool is_small) {
  return is_small ? rest >= kUnit : rest > kLargestSmall;
}

}  // namespace

CachingAllocator::Block* CachingAllocator::new_block(const Block& block) {
  blocks_.push_back(block);
  blocks_.back().self = std::prev(blocks_.end());
  return &blocks_.back();
}

CachingAllocator::Block* CachingAllocator::take_free(std::int64_t bytes, bool is_small) {
  FreeBlocks& pool = is_small ? small_ : large_;
  Block wanted{.bytes = bytes};
  const auto found = pool.lower_bound(&wanted);
  if (found == pool.end()) {
    return nullptr;
  }
  Block* const block = *found;
  pool.erase(found);
  block->is_free = false;
  return block;
}

void CachingAllocator::split(Block* block, std::int64_t bytes) {
  Block* const rest = new_block({.bytes = block->bytes - bytes,
                                 .address = block->address + bytes,
                                 .is_small = block->is_small,
                                 .is_free = true,
                                 .before = block,
                                 .after = block->after});
  if (block->after != nullptr) {
    block->after->before = rest;
  }
  block->after = rest;
  block->bytes = bytes;
  free_blocks(rest).insert(rest);
}

CachingAllocator::Block* CachingAllocator::allocate(std::int64_t bytes) {
  const std::int64_t wanted = to_multiple(std::max<std::int64_t>(bytes, 1), kUnit);
  const bool is_small = wanted <= kLargestSmall;
  Block* block = take_free(wanted, is_small);
  if (block == nullptr) {
    const std::int64_t segment = segment_for(wanted);
    block = new_block({.bytes = segment, .address = reserved_bytes_, .is_small = is_small});
    reserved_bytes_ += segment;
  }
  if (is_worth_splitting(block->bytes - wanted, is_small)) {
    split(block, wanted);
  }
  return block;
}

// Both are free, and in no set.
void CachingAllocator::join_with_after(Block* block) {
  Block* const gone = block->after;
  block->bytes += gone->bytes;
  block->after = gone->after;
  if (block->after != nullptr) {
    block->after->before = block;
  }
  blocks_.erase(gone->self);
}

void CachingAllocator::free(Block* block) {
  block->is_free = true;
  FreeBlocks& pool = free_blocks(block);
  if (block->after != nullptr && block->after->is_free) {
    pool.erase(block->after);
    join_with_after(block);
  }
  if (block->before != nullptr && block->before->is_free) {
    block = block->before;
    pool.erase(block);
    join_with_after(block);
  }
  pool.insert(block);
}

}  // namespace llm::plan
