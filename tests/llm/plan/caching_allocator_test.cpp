// The allocator of GPUs, as it is played: which segments a sequence of allocations takes.

#include "llm/plan/caching_allocator.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace llm::plan {
namespace {

constexpr std::int64_t kMebi = std::int64_t{1} << 20;

TEST(CachingAllocator, TakesSegmentsBySize) {
  CachingAllocator allocator;
  (void)allocator.allocate(1);
  EXPECT_EQ(allocator.reserved_bytes(), 2 * kMebi);
  (void)allocator.allocate(kMebi);  // behind it
  EXPECT_EQ(allocator.reserved_bytes(), 2 * kMebi);
  (void)allocator.allocate(kMebi);
  EXPECT_EQ(allocator.reserved_bytes(), 4 * kMebi);
  (void)allocator.allocate(3 * kMebi);
  EXPECT_EQ(allocator.reserved_bytes(), 24 * kMebi);
  (void)allocator.allocate(11 * kMebi);  // behind it, in 17 MiB
  EXPECT_EQ(allocator.reserved_bytes(), 24 * kMebi);
  (void)allocator.allocate(11 * kMebi);
  EXPECT_EQ(allocator.reserved_bytes(), 36 * kMebi);
}

TEST(CachingAllocator, GivesTheSmallestBlockThatIsLargeEnough) {
  CachingAllocator allocator;
  auto* const large = allocator.allocate(40 * kMebi);
  auto* const small = allocator.allocate(20 * kMebi);
  allocator.free(large);
  allocator.free(small);
  EXPECT_EQ(allocator.allocate(20 * kMebi), small);
  EXPECT_EQ(allocator.allocate(18 * kMebi), large);  // is split
  (void)allocator.allocate(22 * kMebi);
  EXPECT_EQ(allocator.reserved_bytes(), 60 * kMebi);
}

// A hole between two blocks serves nothing larger, until one of them is free.
TEST(CachingAllocator, JoinsNeighboursThatAreFree) {
  CachingAllocator allocator;
  allocator.free(allocator.allocate(60 * kMebi));
  auto* const first = allocator.allocate(20 * kMebi);
  auto* const second = allocator.allocate(20 * kMebi);
  auto* const third = allocator.allocate(20 * kMebi);
  EXPECT_EQ(allocator.reserved_bytes(), 60 * kMebi);
  allocator.free(first);
  allocator.free(third);
  auto* const apart = allocator.allocate(40 * kMebi);
  EXPECT_EQ(allocator.reserved_bytes(), 100 * kMebi);
  allocator.free(apart);
  allocator.free(second);
  (void)allocator.allocate(40 * kMebi);
  (void)allocator.allocate(60 * kMebi);
  EXPECT_EQ(allocator.reserved_bytes(), 100 * kMebi);
}

TEST(CachingAllocator, HasAllOfASegmentWhenItsBlocksAreFree) {
  CachingAllocator allocator;
  std::mt19937 random(1);
  std::vector<CachingAllocator::Block*> held;
  for (int i = 0; i < 2000; ++i) {
    if (held.empty() || random() % 3 != 0) {
      held.push_back(allocator.allocate(static_cast<std::int64_t>(random() % (30 * kMebi))));
    } else {
      std::swap(held[random() % held.size()], held.back());
      allocator.free(held.back());
      held.pop_back();
    }
  }
  for (auto* const block : held) {
    allocator.free(block);
  }
  const std::int64_t reserved = allocator.reserved_bytes();
  for (int i = 0; i < 20; ++i) {
    (void)allocator.allocate(12 * kMebi);
  }
  EXPECT_EQ(allocator.reserved_bytes(), reserved);
}

}  // namespace
}  // namespace llm::plan
