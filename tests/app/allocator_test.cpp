#include "app/allocator.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gperftools/malloc_extension.h>
#include <gtest/gtest.h>

#include "app/large_blocks.h"
#include "llm/setup/peak_memory.h"

namespace app {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

at::Tensor of_bytes(int64_t bytes) {
  return at::empty({bytes}, at::kByte);
}
int64_t property(const char* name) {
  size_t value = 0;
  EXPECT_TRUE(MallocExtension::instance()->GetNumericProperty(name, &value)) << name;
  return static_cast<int64_t>(value);
}

// Of malloc and of large blocks.
int64_t kept_bytes() {
  return property("generic.heap_size") + static_cast<int64_t>(large_blocks_bytes());
}

class Allocator : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_allocator(); }
};

TEST_F(Allocator, TakesSmallBlocksFromTcmalloc) {
  const int64_t before = property("generic.current_allocated_bytes");
  const at::Tensor tensor = of_bytes(3 * kMiB);
  EXPECT_GE(property("generic.current_allocated_bytes"), before + 3 * kMiB);
}

TEST_F(Allocator, TakesLargeBlocksFromElsewhere) {
  const int64_t before = property("generic.current_allocated_bytes");
  const at::Tensor tensor = of_bytes(64 * kMiB);
  EXPECT_LT(property("generic.current_allocated_bytes"), before + 3 * kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % LargeBlocks::kPageBytes, 0U);
}

TEST_F(Allocator, KeepsWhatIsFreed) {
  for (const int64_t bytes : {kMiB, 64 * kMiB}) {
    const int64_t held = [&] {
      const at::Tensor tensor = of_bytes(bytes);
      return kept_bytes();
    }();
    for (int i = 0; i < 100; ++i) {
      static_cast<void>(of_bytes(bytes));
    }
    EXPECT_EQ(kept_bytes(), held);
  }
}

// As batches of unequal samples ask for them.
TEST_F(Allocator, SizesThatAreAlwaysNewDoNotAddUp) {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int64_t> bytes(kMiB, 48 * kMiB);
  const int64_t before = kept_bytes();
  int64_t most = 0;
  for (int step = 0; step < 200; ++step) {
    std::vector<at::Tensor> tensors;
    int64_t used = 0;
    for (int i = 0; i < 8; ++i) {
      const int64_t size = bytes(random);
      tensors.push_back(of_bytes(size));
      used += size;
    }
    most = std::max(most, used);
  }
  EXPECT_LE(kept_bytes() - before, most + most / 4);
}

TEST_F(Allocator, HandsOutRawMemoryToo) {
  c10::Allocator* allocator = c10::GetCPUAllocator();
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{3 * kMiB}, size_t{64 * kMiB}}) {
    allocator->raw_deallocate(allocator->raw_allocate(bytes));
  }
}

TEST_F(Allocator, ThrowsWhereThereIsNoMemory) {
  EXPECT_THROW(static_cast<void>(of_bytes(int64_t{1} << 60)), c10::Error);
}

// The kernel maps it, and kills the process that then uses it.
TEST_F(Allocator, RefusesMoreThanTheSystemHas) {
  const int64_t available = llm::setup::available_memory_bytes(/*local_ranks=*/1);
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

TEST_F(Allocator, GivesWhatIsFreeBackBeforeItRefuses) {
  static_cast<void>(of_bytes(512 * kMiB));
  EXPECT_THROW(static_cast<void>(of_bytes(int64_t{1} << 60)), c10::Error);
  EXPECT_EQ(large_blocks_bytes(), 0U);
}

}  // namespace
}  // namespace app
