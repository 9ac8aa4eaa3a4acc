#include "app/allocator.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gperftools/malloc_extension.h>

#include "llm/train/peak_memory.h"

namespace app {

namespace {

// The system is asked once for so many bytes: asking each time would take longer than the rest.
constexpr std::size_t kAskedFor = std::size_t{1} << 30;

// What oneDNN compiles is for one shape, and most of it is never met again where every batch has
// another length. A step of a model has a few dozen.
constexpr const char* kKeptPrimitives = "128";

bool is_available(std::size_t bytes) {
  const std::int64_t available = llm::train::available_memory_bytes(/*local_ranks=*/1);
  return available == 0 || bytes <= static_cast<std::size_t>(available);
}

class RefusingAllocator final : public c10::Allocator {
 public:
  explicit RefusingAllocator(c10::Allocator& from) : from_(from) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (unasked_bytes_.fetch_add(bytes) + bytes >= kAskedFor) {
      unasked_bytes_ = 0;
      if (!is_available(bytes)) {
        MallocExtension::instance()->ReleaseFreeMemory();
        if (!is_available(bytes)) {
          refuse(bytes);
        }
      }
    }
    try {
      return from_.allocate(bytes);
    } catch (const c10::Error&) {
      refuse(bytes);
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return from_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    from_.copy_data(to, from, bytes);
  }

 private:
  [[noreturn]] static void refuse(std::size_t bytes) {
    TORCH_CHECK(false, "not enough memory: ", bytes, " bytes asked for at once, ",
                llm::train::available_memory_bytes(1),
                " available. Use more ranks, a smaller train.micro_batch or data.max_length.");
  }

  c10::Allocator& from_;
  std::atomic<std::size_t> unasked_bytes_ = 0;
};

}  // namespace

void install_allocator() {
  MallocExtension::instance()->SetMemoryReleaseRate(0);
  setenv("THP_MEM_ALLOC_ENABLE", "1", /*replace=*/0);
  setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", kKeptPrimitives, /*replace=*/0);
  c10::SetCPUAllocator(new RefusingAllocator(*c10::GetDefaultCPUAllocator()),
                       /*priority=*/1);  // LibTorch keeps it for good
}

}  // namespace app
