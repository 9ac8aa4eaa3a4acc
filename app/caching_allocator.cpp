#include "app/caching_allocator.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include "llm/train/peak_memory.h"
#include "sherd/error.h"

namespace app {

namespace {

constexpr std::size_t kLeastCached = std::size_t{256} << 10;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kGranule = std::size_t{64} << 10;  // sizes are multiples of
// The kernel promises memory that it does not have, and kills who uses it. So the system is asked
// first, from this size on: smaller ones are mapped too often.
constexpr std::size_t kAskedFor = std::size_t{1} << 30;
// A free block serves a request that leaves at most a quarter of it unused.
constexpr double kMostOfRequest = 4.0 / 3.0;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool is_available(std::size_t bytes) {
  if (bytes < kAskedFor) {
    return true;
  }
  const std::int64_t available = llm::train::available_memory_bytes(/*local_ranks=*/1);
  return available == 0 || bytes <= static_cast<std::size_t>(available);
}

// Mapped on a huge page's boundary; null where the system has none. What does not fill a huge page
// at the end has small ones: half of a huge page unused would be memory lost.
void* map_block(std::size_t bytes) {
  if (!is_available(bytes)) {
    return nullptr;
  }
  void* base =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return nullptr;
  }
  const auto start = reinterpret_cast<std::uintptr_t>(base);
  const std::uintptr_t aligned = rounded_up(start, kHugePage);
  if (aligned > start) {
    munmap(base, aligned - start);
  }
  if (const std::size_t tail = start + kHugePage - aligned; tail > 0) {
    munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  }
  madvise(reinterpret_cast<void*>(aligned), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

// Free and used blocks of one process.
class Blocks {
 public:
  void* take(std::size_t request) {
    const std::size_t bytes = rounded_up(request, kGranule);
    const std::lock_guard lock(mutex_);
    auto found = free_.lower_bound(bytes);
    if (found != free_.end() &&
        static_cast<double>(found->first) <= kMostOfRequest * static_cast<double>(bytes)) {
      void* block = found->second;
      used_[block] = found->first;
      free_.erase(found);
      return block;
    }
    void* block = map_block(bytes);
    if (block == nullptr) {
      give_back_free();
      block = map_block(bytes);
    }
    if (block != nullptr) {
      used_[block] = bytes;
      counts_.mapped_bytes += static_cast<std::int64_t>(bytes);
      ++counts_.mappings;
    }
    return block;
  }

  // Whether it was one of these.
  bool put_back(void* block) {
    if (reinterpret_cast<std::uintptr_t>(block) % kHugePage != 0) {
      return false;
    }
    const std::lock_guard lock(mutex_);
    const auto found = used_.find(block);
    if (found == used_.end()) {
      return false;
    }
    free_.emplace(found->second, block);
    used_.erase(found);
    return true;
  }

  CachingAllocatorCounts counts() {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  void give_back_free() {
    for (const auto& [bytes, block] : free_) {
      munmap(block, bytes);
      counts_.mapped_bytes -= static_cast<std::int64_t>(bytes);
    }
    free_.clear();
  }

  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;  // by size
  std::unordered_map<void*, std::size_t> used_;
  CachingAllocatorCounts counts_;
};

// Lives as long as the process: tensors may outlive everything else.
Blocks& blocks() {
  static auto* const all = new Blocks;
  return *all;
}

// LibTorch wants one function for all that an allocator hands out.
void put_back(void* memory) {
  if (memory != nullptr && !blocks().put_back(memory)) {
    c10::GetDefaultCPUAllocator()->raw_deallocate(memory);
  }
}

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = bytes < kLeastCached ? c10::GetDefaultCPUAllocator()->raw_allocate(bytes)
                                        : blocks().take(bytes);
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
  static_cast<void>(blocks());
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

CachingAllocatorCounts caching_allocator_counts() {
  return blocks().counts();
}

}  // namespace app
