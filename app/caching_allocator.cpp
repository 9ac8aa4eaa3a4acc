#include "app/caching_allocator.h"

#include <cstdint>
#include <string>
#include <string_view>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "llm/train/peak_memory.h"
#include "sherd/error.h"

namespace app {

namespace {

constexpr std::size_t kLeastCached = std::size_t{256} << 10;

// Lives as long as the process: tensors may outlive everything else.
MemoryArena& arena() {
  static auto* const all = new MemoryArena;
  return *all;
}

// LibTorch wants one function for all that an allocator hands out.
void put_back(void* memory) {
  if (memory != nullptr && !arena().put_back(memory)) {
    c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
  }
}

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = bytes < kLeastCached ? c10::GetDefaultCPUAllocator()->raw_allocate(bytes)
                                        : arena().take(bytes);
    TORCH_CHECK(memory != nullptr || bytes == 0, "not enough memory: ", bytes,
                " bytes asked for at once, ", llm::train::available_memory_bytes(1),
                " available. Use more ranks, a smaller train.micro_batch or data.max_length.");
    return {memory, memory, &put_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &put_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void install_caching_allocator() {
  static_cast<void>(arena());
  c10::SetCPUAllocator(new CachingAllocator, /*priority=*/1);  // LibTorch keeps it for good
}

bool wants_caching_allocator(const char* setting) {
  const std::string_view word = setting == nullptr ? "" : setting;
  if (!word.empty() && word != "caching" && word != "system") {
    throw sherd::Error(sherd::ExitCode::Usage, "SHERD_ALLOCATOR is '" + std::string(word) +
                                                   "': give 'caching' or 'system', or unset it");
  }
  return word != "system";
}

ArenaCounts caching_allocator_counts() {
  return arena().counts();
}

}  // namespace app
