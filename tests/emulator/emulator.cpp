#include "tests/emulator/emulator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "context.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace sherd::emulator {

namespace {

// What the address sanitizer has to know of a change of stacks; nothing without it.
#if defined(__SANITIZE_ADDRESS__)
void leave_stack(void** kept, const void* next, std::size_t bytes) {
  __sanitizer_start_switch_fiber(kept, next, bytes);
}
void enter_stack(void* kept, const void** from, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(kept, from, bytes);
}
void forget_frames(const void* stack, std::size_t bytes) {
  __asan_unpoison_memory_region(stack, bytes);
}
#else
void leave_stack(void** /*kept*/, const void* /*next*/, std::size_t /*bytes*/) {}
void enter_stack(void* /*kept*/, const void** /*from*/, std::size_t* /*bytes*/) {}
void forget_frames(const void* /*stack*/, std::size_t /*bytes*/) {}
#endif

constexpr std::size_t kStackBytes = std::size_t{256} << 10;

enum class Waits : std::uint8_t { Not, ForTheBlock, ForTheWarp };

struct Fiber {
  Context context;
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  void* kept = nullptr;  // of the sanitizer
  Waits waits = Waits::Not;
  bool is_made = false;  // and goes on with the next block when it has ended
  bool has_ended = true;
  double shown = 0;  // to its warp
  const char* file = "";
  unsigned line = 0;
};

// One block at a time, on the stacks of the one before.
struct Stage {
  std::vector<std::unique_ptr<Fiber>> fibers;
  int current = 0;
  std::int64_t block = 0;
  std::int64_t blocks = 0;
  std::function<void()> body;
  std::optional<Barrier> without;
  std::set<std::pair<const char*, unsigned>> met;  // of `barriers`, found without a text's copy
  std::set<Barrier> barriers;
  std::map<std::tuple<const char*, const char*, unsigned>, std::vector<char>> shared;
  Context main;
  void* main_kept = nullptr;
  std::exception_ptr thrown;  // by a thread, for play()
  Traffic moved;              // by the kernel that is played
  std::map<std::string, Traffic> moved_by;
  std::optional<std::string> next_failure;
  const void* main_stack = nullptr;
  std::size_t main_stack_bytes = 0;
};

Stage& stage() {
  static thread_local Stage one;
  return one;
}

Fiber& running() {
  return *stage().fibers[static_cast<std::size_t>(stage().current)];
}

void back_to_main(Fiber& fiber) {
  Stage& s = stage();
  leave_stack(&fiber.kept, s.main_stack, s.main_stack_bytes);
  Context::change(fiber.context, s.main);
  enter_stack(fiber.kept, nullptr, nullptr);
}

// A thread of one block after the other: the sanitizer needs long to make a stack known.
void run_fiber() {
  Stage& s = stage();
  enter_stack(nullptr, &s.main_stack, &s.main_stack_bytes);
  for (;;) {
    try {
      s.body();
    } catch (...) {
      s.thrown = std::current_exception();
    }
    Fiber& fiber = running();
    fiber.has_ended = true;
    back_to_main(fiber);
  }
}

void resume(int thread) {
  Stage& s = stage();
  s.current = thread;
  Fiber& fiber = running();
  leave_stack(&s.main_kept, fiber.stack.get(), kStackBytes);
  Context::change(s.main, fiber.context);
  enter_stack(s.main_kept, nullptr, nullptr);
}

void wait(Waits what, const std::source_location& where) {
  Fiber& fiber = running();
  fiber.waits = what;
  fiber.file = where.file_name();
  fiber.line = where.line();
  back_to_main(fiber);
}

void begin(Fiber& fiber) {
  fiber.waits = Waits::Not;
  if (fiber.is_made && std::exchange(fiber.has_ended, false)) {
    return;
  }
  fiber.is_made = true;  // anew where an error left it half-way
  fiber.has_ended = false;
  forget_frames(fiber.stack.get(), kStackBytes);
  fiber.kept = nullptr;
  fiber.context.prepare(fiber.stack.get(), kStackBytes, run_fiber);
}

// Threads first … last may go on, if all of them wait so at one place.
bool release(int first, int last, Waits what) {
  const auto& fibers = stage().fibers;
  const auto begin = fibers.begin() + first, end = fibers.begin() + last;
  if (!std::all_of(begin, end, [&](const auto& fiber) { return fiber->waits == what; })) {
    return false;
  }
  const bool at_one_place =
      std::all_of(begin, end, [&](const auto& fiber) { return fiber->line == (*begin)->line; });
  if (!at_one_place) {
    throw std::logic_error("threads wait at different barriers, lines " +
                           std::to_string((*begin)->line) + " and others");
  }
  std::for_each(begin, end, [](const auto& fiber) { fiber->waits = Waits::Not; });
  return true;
}

bool can_go_on(const Fiber& fiber) {
  return !fiber.has_ended && fiber.waits == Waits::Not;
}

// A warp's threads, in a random order, until each waits or has ended; whether there was one that
// could.
bool run_warp(int first, int last, std::mt19937& random) {
  std::vector<int> order;
  for (int thread = first; thread < last; ++thread) {
    if (can_go_on(*stage().fibers[static_cast<std::size_t>(thread)])) {
      order.push_back(thread);
    }
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const int thread : order) {
    resume(thread);
    if (stage().thrown != nullptr) {
      std::rethrow_exception(std::exchange(stage().thrown, nullptr));
    }
  }
  return !order.empty();
}

// Those that come first in the order run as far as they can before the others run at all: what one
// does too early shows.
bool run_warps(const std::vector<int>& order, int threads, std::mt19937& random) {
  return std::any_of(order.begin(), order.end(), [&](int first) {
    const int last = std::min(threads, first + kWarp);
    return run_warp(first, last, random) || release(first, last, Waits::ForTheWarp);
  });
}

void tell_who_waits() {
  for (const auto& fiber : stage().fibers) {
    if (!fiber->has_ended) {
      throw std::logic_error("a barrier that not all threads reach: " + std::string(fiber->file) +
                             ":" + std::to_string(fiber->line));
    }
  }
}

void play_block(int threads, std::mt19937& random) {
  Stage& s = stage();
  s.shared.clear();
  s.fibers.resize(static_cast<std::size_t>(threads));
  for (auto& fiber : s.fibers) {
    if (fiber == nullptr) {
      fiber = std::make_unique<Fiber>();
    }
    begin(*fiber);
  }
  std::vector<int> warps;
  for (int first = 0; first < threads; first += kWarp) {
    warps.push_back(first);
  }
  do {  // from one barrier of the block to the next
    std::shuffle(warps.begin(), warps.end(), random);
    while (run_warps(warps, threads, random)) {
    }
  } while (release(0, threads, Waits::ForTheBlock));
  tell_who_waits();
}

bool is_taken_away(const std::source_location& where) {
  Stage& s = stage();
  if (s.met.insert({where.file_name(), where.line()}).second) {
    s.barriers.insert({where.file_name(), where.line()});
  }
  return s.without && s.without->line == where.line() && s.without->file == where.file_name();
}

}  // namespace

std::uint32_t next_seed() {
  static thread_local std::uint32_t seed = 0;
  return ++seed;
}

std::set<Barrier> play(std::int64_t blocks, int threads, const std::function<void()>& body,
                       const Play& how) {
  Stage& s = stage();
  s.blocks = blocks;
  s.body = body;
  s.without = how.without;
  s.met.clear();
  s.barriers.clear();
  s.moved = {};
  std::mt19937 random(how.seed);
  for (s.block = 0; s.block < blocks; ++s.block) {
    play_block(threads, random);
  }
  s.moved_by[how.kernel].read += s.moved.read;
  s.moved_by[how.kernel].written += s.moved.written;
  return s.barriers;
}

std::map<std::string, Traffic> take_traffic() {
  return std::exchange(stage().moved_by, {});
}

void fail_next_launch(const std::string& reason) {
  stage().next_failure = reason;
}

std::optional<std::string> take_launch_failure() {
  return std::exchange(stage().next_failure, std::nullopt);
}

void count_read(std::size_t bytes) {
  stage().moved.read += static_cast<std::int64_t>(bytes);
}

void count_written(std::size_t bytes) {
  stage().moved.written += static_cast<std::int64_t>(bytes);
}

int thread_index() {
  return stage().current;
}

std::int64_t block_index() {
  return stage().block;
}

std::int64_t block_count() {
  return stage().blocks;
}

void sync_block(const std::source_location& where) {
  if (!is_taken_away(where)) {
    wait(Waits::ForTheBlock, where);
  }
}

// The first wait is for what others show, the second for those that have yet to read.
double shuffle_xor(double value, int bits, const std::source_location& where) {
  running().shown = value;
  wait(Waits::ForTheWarp, where);
  const auto other = static_cast<std::size_t>(stage().current ^ bits);
  const double shown = stage().fibers.at(other)->shown;
  wait(Waits::ForTheWarp, where);
  return shown;
}

void check_aligned(const void* address, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
    throw std::logic_error("an access of " + std::to_string(bytes) + " bytes is not aligned");
  }
}

void* shared_bytes(std::size_t bytes, const std::source_location& where) {
  auto& memory = stage().shared[{where.function_name(), where.file_name(),
                                 where.line() * 1000U + where.column()}];
  if (memory.empty()) {
    memory.assign(bytes, '\xff');
  }
  return memory.data();
}

}  // namespace sherd::emulator
