#include "app/allocator.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gperftools/malloc_extension.h>

#include "app/large_blocks.h"
#include "llm/plan/device.h"
#include "llm/setup/peak_memory.h"
#include "ops/cpu/isa.h"

namespace app {

namespace {

// Smaller ones are malloc's: pages of 2 MiB would hold too little of them.
constexpr auto kLeastLarge = static_cast<std::size_t>(llm::plan::kHostPooling.large_bytes);
static_assert(llm::plan::kHostPooling.page_bytes == LargeBlocks::kPageBytes);

// Bytes to take from the system at once: one call each time would dominate the cost.
constexpr std::size_t kAskedFor = std::size_t{1} << 30;

// oneDNN compiles each product for one shape. Where batches have unequal lengths, most shapes never
// come again; one micro-batch of a model has a few dozen. LibTorch keeps products too, in a cache
// of its own before oneDNN's (ideep's, 1,024 per thread), each with a description of 130 KB. What
// it drops costs no compilation while oneDNN still has it, so the layers of one model are enough.
// One of AMX is larger, since it has kernels for the rest of each tile.
constexpr const char* kPrimitivesOfOneDnn = "64";
constexpr const char* kPrimitivesOfOneDnnOnAmx = "48";
constexpr const char* kPrimitivesOfLibTorch = "16";

bool is_available(std::size_t bytes) {
  const std::int64_t available = llm::setup::available_memory_bytes(/*local_ranks=*/1);
  return available == 0 || bytes <= static_cast<std::size_t>(available);
}

// Lives as long as the process: tensors may outlive everything else.
LargeBlocks& large_blocks() {
  static auto* const blocks = new LargeBlocks;
  return *blocks;
}

// LibTorch wants one function for all that an allocator hands out.
void put_back(void* memory) {
  if (!large_blocks().put_back(memory)) {
    c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
  }
}

class RefusingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (unasked_bytes_.fetch_add(bytes) + bytes >= kAskedFor) {
      unasked_bytes_ = 0;
      if (!is_available(bytes)) {
        give_back_free_memory();
        if (!is_available(bytes)) {
          refuse(bytes);
        }
      }
    }
    void* memory = taken(bytes);
    return {memory, memory, &put_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &put_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void* taken(std::size_t bytes) {
    if (bytes < kLeastLarge) {
      try {
        return c10::GetDefaultCPUAllocator()->raw_allocate(bytes);
      } catch (const c10::Error&) {
        refuse(bytes);
      }
    }
    void* memory = large_blocks().take(bytes);
    if (memory == nullptr) {
      refuse(bytes);
    }
    return memory;
  }
  [[noreturn]] static void refuse(std::size_t bytes) {
    TORCH_CHECK(false, "not enough memory: ", bytes, " bytes requested at once, ",
                llm::setup::available_memory_bytes(1),
                " available. Use more ranks, a smaller train.micro_batch or data.max_length.");
  }

  std::atomic<std::size_t> unasked_bytes_ = 0;
};

}  // namespace

std::size_t large_blocks_bytes() {
  return large_blocks().held_bytes();
}

void give_back_free_memory() {
  large_blocks().give_back_free();
  MallocExtension::instance()->ReleaseFreeMemory();
}

void install_allocator() {
  MallocExtension::instance()->SetMemoryReleaseRate(0);
  setenv("THP_MEM_ALLOC_ENABLE", "1", /*replace=*/0);
  // The machine's path, and not the chosen one: a wrong SHERD_CPU_ISA is for the verbs to report.
  const bool is_amx = sherd::ops::cpu::machine_isa() == sherd::ops::cpu::Isa::Amx;
  setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", is_amx ? kPrimitivesOfOneDnnOnAmx : kPrimitivesOfOneDnn,
         /*replace=*/0);
  setenv("LRU_CACHE_CAPACITY", kPrimitivesOfLibTorch, /*replace=*/0);
  c10::SetCPUAllocator(new RefusingAllocator,
                       /*priority=*/1);  // LibTorch keeps it for good
}

}  // namespace app
