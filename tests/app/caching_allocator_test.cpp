#include "app/caching_allocator.h"

#include <random>
#include <thread>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "llm/train/peak_memory.h"
#include "tests/support/expect_error.h"

namespace app {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

at::Tensor of_bytes(int64_t bytes) {
  return at::empty({bytes}, at::kByte);
}

class CachingAllocator : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_caching_allocator(); }
};

TEST_F(CachingAllocator, UsesALargeBlockAgain) {
  const void* first = of_bytes(5 * kMiB).data_ptr();
  const auto before = caching_allocator_counts();
  EXPECT_EQ(of_bytes(5 * kMiB).data_ptr(), first);
  EXPECT_EQ(caching_allocator_counts().growths, before.growths);
}

TEST_F(CachingAllocator, LeavesSmallOnesToLibTorch) {
  const auto before = caching_allocator_counts();
  static_cast<void>(of_bytes(kMiB / 4 - 1));
  EXPECT_EQ(caching_allocator_counts().growths, before.growths);
}

TEST_F(CachingAllocator, JoinsWhatIsFreeSideBySide) {
  static_cast<void>(of_bytes(12 * kMiB));
  const auto before = caching_allocator_counts();
  const void* first = nullptr;
  {
    const at::Tensor a = of_bytes(4 * kMiB), b = of_bytes(4 * kMiB), c = of_bytes(4 * kMiB);
    first = a.data_ptr();
  }
  EXPECT_EQ(of_bytes(12 * kMiB).data_ptr(), first);
  EXPECT_EQ(caching_allocator_counts().growths, before.growths);
}

TEST_F(CachingAllocator, SpendsTheSmallestGapThatFits) {
  at::Tensor large = of_bytes(64 * kMiB), between = of_bytes(kMiB), small = of_bytes(2 * kMiB),
             last = of_bytes(kMiB);
  const void* gap = small.data_ptr();
  large.reset();
  small.reset();
  EXPECT_EQ(of_bytes(2 * kMiB).data_ptr(), gap);
}

// As batches of unequal samples ask for them.
TEST_F(CachingAllocator, SizesThatAreAlwaysNewDoNotAddUp) {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int64_t> bytes(kMiB, 48 * kMiB);
  for (int step = 0; step < 200; ++step) {
    const at::Tensor first = of_bytes(bytes(random)), second = of_bytes(bytes(random));
  }
  const auto counts = caching_allocator_counts();
  EXPECT_LE(counts.mapped_bytes, counts.most_used_bytes + counts.most_used_bytes / 2);
}

// Between two steps most is free: a block of a new size there costs the next step nothing.
TEST_F(CachingAllocator, WhatTheNextStepNeedsStays) {
  const auto step = [](int64_t new_bytes) {
    const at::Tensor batch = of_bytes(new_bytes);
    std::vector<at::Tensor> activations;
    for (int i = 0; i < 8; ++i) {
      activations.push_back(of_bytes(20 * kMiB));
    }
  };
  step(kMiB);
  for (int i = 1; i < 6; ++i) {
    const auto before = caching_allocator_counts();
    step((2 * i + 1) * kMiB);
    EXPECT_LE(caching_allocator_counts().growths, before.growths + 1) << i;
  }
}

TEST_F(CachingAllocator, GoesElsewhereWhereTheNextAddressIsTaken) {
  const at::Tensor last = of_bytes(512 * kMiB);  // larger than any gap
  const auto end = reinterpret_cast<std::uintptr_t>(last.data_ptr()) + 512 * kMiB;
  void* next = reinterpret_cast<void*>((end + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB));
  void* taken =
      mmap(next, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(taken, next);
  const void* elsewhere = of_bytes(576 * kMiB).data_ptr();  // and put back at once
  EXPECT_EQ(of_bytes(576 * kMiB).data_ptr(), elsewhere);
  munmap(taken, 4096);
}

TEST_F(CachingAllocator, BlocksInUseAreNotHandedOutTwice) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(at::full({3 * kMiB}, i, at::kByte));
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(tensors[static_cast<size_t>(i)].eq(i).all().item<bool>()) << i;
  }
}

TEST_F(CachingAllocator, ServesSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(at::full({2 * kMiB}, t, at::kByte).eq(t).all().item<bool>());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(CachingAllocator, HandsOutRawMemoryToo) {
  c10::Allocator* allocator = c10::GetCPUAllocator();
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{3 * kMiB}}) {
    allocator->raw_deallocate(allocator->raw_allocate(bytes));
  }
}

TEST_F(CachingAllocator, ThrowsWhereThereIsNoMemory) {
  EXPECT_THROW(static_cast<void>(of_bytes(int64_t{1} << 60)), c10::Error);
}

TEST(Allocator, IsTheSystemsWhereTheEnvironmentSaysSo) {
  EXPECT_TRUE(wants_caching_allocator(nullptr));
  EXPECT_TRUE(wants_caching_allocator(""));
  EXPECT_TRUE(wants_caching_allocator("caching"));
  EXPECT_FALSE(wants_caching_allocator("system"));
  sherd::test::expect_error([] { static_cast<void>(wants_caching_allocator("jemalloc")); },
                            sherd::ExitCode::Usage,
                            {"SHERD_ALLOCATOR is 'jemalloc'", "'caching' or 'system'"});
}

// The kernel maps it, and kills the process that then uses it.
TEST_F(CachingAllocator, RefusesMoreThanTheSystemHas) {
  const int64_t available = llm::train::available_memory_bytes(/*local_ranks=*/1);
  ASSERT_GT(available, 0);
  for (const int64_t bytes : {available + available / 4, 8 * available}) {
    try {
      static_cast<void>(of_bytes(bytes));
      ADD_FAILURE() << bytes << " bytes were handed out, " << available << " are available";
    } catch (const c10::Error& error) {
      EXPECT_THAT(
          error.what_without_backtrace(),
          testing::AllOf(testing::HasSubstr("not enough memory: " + std::to_string(bytes)),
                         testing::HasSubstr("available"), testing::HasSubstr("train.micro_batch")));
    }
  }
}

TEST_F(CachingAllocator, GivesWhatIsFreeBackBeforeItRefuses) {
  static_cast<void>(of_bytes(96 * kMiB));
  const auto before = caching_allocator_counts();
  EXPECT_THROW(static_cast<void>(of_bytes(int64_t{1} << 60)), c10::Error);
  EXPECT_LE(caching_allocator_counts().mapped_bytes, before.mapped_bytes - 96 * kMiB);
}

}  // namespace
}  // namespace app
