#pragma once
// Plays a GPU's threads on one processor: a kernel's source is compiled as it is, each of a block's
// threads is a fiber, and they run in a random order from one barrier to the next, warps ahead of
// each other. It shows wrong results, barriers that are missing or that not all threads reach,
// accesses of 16 bytes that are not aligned, and, with the address sanitizer, those outside of
// arrays. It does not show the order in which
// memory becomes visible, races between blocks, or speed.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <source_location>
#include <string>
#include <vector>

namespace sherd::emulator {

inline constexpr int kWarp = 32;

/// A place in the source where threads wait for each other.
struct Barrier {
  std::string file;
  unsigned line = 0;
  auto operator<=>(const Barrier&) const = default;
};

/// How a kernel is played.
struct Play {
  std::uint32_t seed = 1;  ///< of the order of threads
  std::optional<Barrier> without =
      std::nullopt;         ///< a barrier that is taken away, to see whether that shows
  const char* kernel = "";  ///< its name, under which traffic() counts
};

/// Bytes of global memory that kernels moved.
struct Traffic {
  std::int64_t read = 0;
  std::int64_t written = 0;
  auto operator<=>(const Traffic&) const = default;
};

/// What the kernels that this thread played moved since the last call, by the kernel's name.
[[nodiscard]] std::map<std::string, Traffic> take_traffic();

/// Makes the next launch of this thread fail for this reason, as the CUDA runtime reports it.
void fail_next_launch(const std::string& reason);
/// That reason, once.
[[nodiscard]] std::optional<std::string> take_launch_failure();

/// Another one for each launch of this thread: 1, 2, …
[[nodiscard]] std::uint32_t next_seed();

/// Runs a kernel's body for all threads of all blocks, one block after the other. Throws
/// std::logic_error where threads of a block wait at different barriers, or some have ended, and
/// what a thread has thrown.
/// Returns the barriers that were met.
std::set<Barrier> play(std::int64_t blocks, int threads, const std::function<void()>& body,
                       const Play& how = {});

// Called by the kernel that is played.

[[nodiscard]] int thread_index();
[[nodiscard]] std::int64_t block_index();
[[nodiscard]] std::int64_t block_count();
void sync_block(const std::source_location& where);
[[nodiscard]] double shuffle_xor(double value, int bits, const std::source_location& where);
void count_read(std::size_t bytes);
void count_written(std::size_t bytes);
/// Throws std::logic_error where a GPU would stop.
void check_aligned(const void* address, std::size_t bytes);
/// The block's memory of that place in the source, all ones (NaN) at its first use in a block.
[[nodiscard]] void* shared_bytes(std::size_t bytes, const std::source_location& where);

template <class T, std::size_t kCount>
[[nodiscard]] T (&shared(std::source_location where = std::source_location::current()))[kCount] {
  return *static_cast<T(*)[kCount]>(shared_bytes(kCount * sizeof(T), where));
}

}  // namespace sherd::emulator
