#pragma once
// Values that depend on the seed alone, also where ranks are threads.

#include <cstdint>
#include <mutex>
#include <utility>

#include <torch/utils.h>

namespace sherd::test {

inline std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// Calls `build` with LibTorch's generator at `seed`, one caller at a time: the generator is one
/// for all threads.
template <class Build>
auto seeded(uint64_t seed, Build&& build) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(seed);
  return std::forward<Build>(build)();
}

}  // namespace sherd::test
