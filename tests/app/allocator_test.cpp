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

#include "llm/train/peak_memory.h"

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

class Allocator : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_allocator(); }
};

TEST_F(Allocator, TakesMemoryFromTcmalloc) {
  const int64_t before = property("generic.current_allocated_bytes");
  const at::Tensor tensor = of_bytes(64 * kMiB);
  EXPECT_GE(property("generic.current_allocated_bytes"), before + 64 * kMiB);
}

TEST_F(Allocator, KeepsWhatIsFreed) {
  static_cast<void>(of_bytes(64 * kMiB));
  const int64_t held = property("generic.heap_size");
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(of_bytes(64 * kMiB));
  }
  EXPECT_EQ(property("generic.heap_size"), held);
}

// As batches of unequal samples ask for them.
TEST_F(Allocator, SizesThatAreAlwaysNewDoNotAddUp) {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int64_t> bytes(kMiB, 48 * kMiB);
  const int64_t before = property("generic.heap_size");
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
  EXPECT_LE(property("generic.heap_size") - before, most + most / 2);
}

TEST_F(Allocator, HandsOutRawMemoryToo) {
  c10::Allocator* allocator = c10::GetCPUAllocator();
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{3 * kMiB}}) {
    allocator->raw_deallocate(allocator->raw_allocate(bytes));
  }
}

TEST_F(Allocator, ThrowsWhereThereIsNoMemory) {
  EXPECT_THROW(static_cast<void>(of_bytes(int64_t{1} << 60)), c10::Error);
}

// The kernel maps it, and kills the process that then uses it.
TEST_F(Allocator, RefusesMoreThanTheSystemHas) {
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

TEST_F(Allocator, GivesWhatIsFreeBackBeforeItRefuses) {
  static_cast<void>(of_bytes(512 * kMiB));
  const int64_t before = property("tcmalloc.pageheap_unmapped_bytes");
  EXPECT_THROW(static_cast<void>(of_bytes(int64_t{1} << 60)), c10::Error);
  EXPECT_GE(property("tcmalloc.pageheap_unmapped_bytes"), before + 512 * kMiB);
}

}  // namespace
}  // namespace app
