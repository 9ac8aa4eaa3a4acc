#include "app/large_blocks.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>

namespace app {
namespace {

constexpr std::size_t kPage = LargeBlocks::kPageBytes;

// Every page carries a number of its own.
void mark(void* block, std::size_t pages, std::uint64_t number) {
  for (std::size_t page = 0; page < pages; ++page) {
    const std::uint64_t mine = number + page;
    std::memcpy(static_cast<char*>(block) + page * kPage, &mine, sizeof mine);
  }
}

bool is_marked(const void* block, std::size_t pages, std::uint64_t number) {
  for (std::size_t page = 0; page < pages; ++page) {
    std::uint64_t found = 0;
    std::memcpy(&found, static_cast<const char*>(block) + page * kPage, sizeof found);
    if (found != number + page) {
      return false;
    }
  }
  return true;
}

TEST(LargeBlocks, BeginOnAPage) {
  LargeBlocks blocks;
  void* const block = blocks.take(3 * kPage + 1);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % kPage, 0U);
  EXPECT_EQ(blocks.held_bytes(), 4 * kPage);
  mark(block, 4, 0);
  EXPECT_TRUE(blocks.put_back(block));
  EXPECT_EQ(blocks.held_bytes(), 4 * kPage);
}

TEST(LargeBlocks, AreUsedAgain) {
  LargeBlocks blocks;
  void* const first = blocks.take(5 * kPage);
  blocks.put_back(first);
  EXPECT_EQ(blocks.take(5 * kPage), first);
}

TEST(LargeBlocks, KnowTheirOwn) {
  LargeBlocks blocks;
  void* const block = blocks.take(kPage);
  int other = 0;
  EXPECT_FALSE(blocks.put_back(&other));
  EXPECT_FALSE(blocks.put_back(nullptr));
  EXPECT_TRUE(blocks.put_back(block));
  EXPECT_FALSE(blocks.put_back(block));
}

// Gaps that lie apart serve a block that is larger than each.
TEST(LargeBlocks, FreePagesFromAnywhereMakeOne) {
  LargeBlocks blocks;
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(blocks.take(2 * kPage));
    mark(all.back(), 2, static_cast<std::uint64_t>(100 * i));
  }
  for (std::size_t i = 0; i < all.size(); i += 2) {
    blocks.put_back(all[i]);
  }
  void* const large = blocks.take(8 * kPage);
  EXPECT_EQ(blocks.held_bytes(), 16 * kPage);
  mark(large, 8, 9000);
  for (std::size_t i = 1; i < all.size(); i += 2) {
    EXPECT_TRUE(is_marked(all[i], 2, 100 * i)) << i;
  }
  blocks.put_back(large);
  void* const larger = blocks.take(9 * kPage);  // the same pages and a new one
  EXPECT_EQ(blocks.held_bytes(), 17 * kPage);
  mark(larger, 9, 0);
  EXPECT_TRUE(is_marked(larger, 9, 0));
}

TEST(LargeBlocks, HoldWhatWasUsedAtATimeWhateverSizesCome) {
  LargeBlocks blocks;
  std::mt19937_64 random(1);
  std::uniform_int_distribution<std::size_t> pages(1, 24);
  struct Block {
    void* memory;
    std::size_t pages;
    std::uint64_t number;
  };
  std::vector<Block> used;
  std::size_t in_use = 0;
  std::size_t most = 0;
  for (std::uint64_t turn = 0; turn < 3000; ++turn) {
    if (used.size() < 8) {
      const std::size_t count = pages(random);
      void* const memory = blocks.take(count * kPage);
      ASSERT_NE(memory, nullptr);
      mark(memory, count, turn << 8);
      used.push_back({memory, count, turn << 8});
      in_use += count;
      most = std::max(most, in_use);
      continue;
    }
    std::swap(used[random() % used.size()], used.back());
    const Block ended = used.back();
    used.pop_back();
    ASSERT_TRUE(is_marked(ended.memory, ended.pages, ended.number)) << turn;
    blocks.put_back(ended.memory);
    in_use -= ended.pages;
  }
  EXPECT_EQ(blocks.held_bytes(), most * kPage);
}

TEST(LargeBlocks, GiveBackWhatIsFree) {
  LargeBlocks blocks;
  void* const kept = blocks.take(kPage);
  mark(kept, 1, 7);
  void* const freed = blocks.take(10 * kPage);
  blocks.put_back(freed);
  blocks.give_back_free();
  EXPECT_EQ(blocks.held_bytes(), kPage);
  unsigned char in_memory = 0;
  EXPECT_EQ(::mincore(freed, 1, &in_memory), -1);  // it is not mapped any more
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_TRUE(is_marked(kept, 1, 7));
}

TEST(LargeBlocks, RefuseWhatTheSystemHasNot) {
  LargeBlocks blocks;
  EXPECT_EQ(blocks.take(std::size_t{1} << 60), nullptr);
  EXPECT_EQ(blocks.take(SIZE_MAX), nullptr);
  EXPECT_EQ(blocks.held_bytes(), 0U);
}

// A process may have 65,530 mappings. Every second page that moves away leaves one behind and makes
// one.
TEST(LargeBlocks, GoOnWhereThereAreNoMoreMappings) {
  constexpr std::size_t kPages = 70'000;
  ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);  // else marks would take 140 GB
  LargeBlocks blocks;
  void* const whole = blocks.take(kPages * kPage);
  blocks.put_back(whole);
  std::vector<void*> all;  // the pages of the whole
  for (std::size_t i = 0; i < kPages; ++i) {
    all.push_back(blocks.take(kPage));
    mark(all.back(), 1, i);
  }
  for (std::size_t i = 0; i < kPages; i += 2) {
    blocks.put_back(all[i]);
  }
  void* const large = blocks.take(kPages / 2 * kPage);
  ASSERT_NE(large, nullptr);
  mark(large, kPages / 2, 3);
  EXPECT_TRUE(is_marked(large, kPages / 2, 3));
  for (std::size_t i = 1; i < kPages; i += 2) {
    ASSERT_TRUE(is_marked(all[i], 1, i)) << i;
  }
  ::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

TEST(LargeBlocks, ServeThreadsAtATime) {
  LargeBlocks blocks;
  const auto work = [&blocks](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::uint64_t turn = 0; turn < 500; ++turn) {
      const std::size_t pages = 1 + random() % 6;
      void* const block = blocks.take(pages * kPage);
      mark(block, pages, seed * 1'000'000 + turn);
      EXPECT_TRUE(is_marked(block, pages, seed * 1'000'000 + turn));
      blocks.put_back(block);
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back(work, seed);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace app
