#pragma once
// Bytes of LibTorch's CPU tensors that this thread allocates, and the most it held at once.

#include <algorithm>
#include <cstdint>
#include <memory>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace sherd::test {

/// Counts from its construction on, on the thread that made it, while it lives.
class AllocatedBytes {
 public:
  AllocatedBytes() : guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}
  [[nodiscard]] int64_t held() const { return counter_->held; }
  [[nodiscard]] int64_t peak() const { return counter_->peak; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*pointer*/, int64_t bytes, size_t /*allocated*/,
                           size_t /*reserved*/, c10::Device /*device*/) override {
      held += bytes;
      peak = std::max(peak, held);
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }
    int64_t held = 0;
    int64_t peak = 0;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_;
};

}  // namespace sherd::test
