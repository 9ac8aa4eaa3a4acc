#pragma once
// A CUPTI without a GPU: LibTorch's profiler records what a test says that a device did. It stands
// in for libcupti and libcudart in the programs that link it before LibTorch. What it plays is
// written by hand; it proves how LibTorch's profiler reads CUPTI's records, not what a GPU does.

#include <cstdint>

namespace fake_cupti {

/// A kernel that the calling thread launches and waits for; it takes at least `nanoseconds`. `name`
/// must outlive the process.
void launch(const char* name, std::uint64_t nanoseconds);
/// A copy within the device, and a memset, likewise.
void copy_on_device(std::uint64_t bytes, std::uint64_t nanoseconds);
void set_memory(std::uint64_t bytes, std::uint64_t nanoseconds);

/// Whether calls of CUPTI fail for want of privileges from now on.
void refuse(bool refuses);

}  // namespace fake_cupti
