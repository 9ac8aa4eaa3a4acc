// The ledger, its buffers, and the arena that gathered units lie in.

#include <algorithm>
#include <cstring>
#include <deque>

#include <gtest/gtest.h>

#include "sherd/memory.h"
#include "src/storage/gather_arena.h"

namespace sherd {
namespace {

std::shared_ptr<MemoryLedger> make_ledger() {
  return std::make_shared<MemoryLedger>();
}

TEST(MemoryLedger, CountsByKindAndKeepsThePeak) {
  const auto ledger = make_ledger();
  ledger->add(MemoryKind::MasterShard, 100);
  ledger->add(MemoryKind::OptimizerState, 200);
  ledger->add(MemoryKind::Gathered, 50);
  ledger->add(MemoryKind::Gathered, -50);
  EXPECT_EQ(ledger->bytes(MemoryKind::Gathered), 0);
  EXPECT_EQ(ledger->sharded_state_bytes(), 300);
  EXPECT_EQ(ledger->total_bytes(), 300);
  EXPECT_EQ(ledger->peak_bytes(), 350);
  EXPECT_EQ(ledger->changes(), 4);
  ledger->reset_peak();
  EXPECT_EQ(ledger->peak_bytes(), 300);
}

TEST(Buffer, IsZeroedAlignedAndEnteredWhileItLives) {
  const auto ledger = make_ledger();
  for (const int64_t bytes :
       {int64_t{1}, int64_t{4097}, (int64_t{2} << 20), (int64_t{5} << 20) + 3}) {
    {
      const Buffer buffer(bytes, MemoryKind::Gathered, ledger);
      EXPECT_EQ(ledger->total_bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
      const auto* begin = static_cast<const char*>(buffer.data());
      EXPECT_TRUE(std::all_of(begin, begin + bytes, [](char c) { return c == 0; }));
      std::memset(buffer.data(), 1, static_cast<size_t>(bytes));
    }
    EXPECT_EQ(ledger->total_bytes(), 0);
  }
}

TEST(Buffer, MovesWithoutCountingTwice) {
  const auto ledger = make_ledger();
  Buffer a(100, MemoryKind::Gathered, ledger);
  Buffer b(std::move(a));
  EXPECT_EQ(ledger->total_bytes(), 100);
  a = Buffer(30, MemoryKind::ReduceBuffer, ledger);
  b = std::move(a);
  a = Buffer();
  EXPECT_EQ(ledger->total_bytes(), 30);
  EXPECT_EQ(ledger->bytes(MemoryKind::ReduceBuffer), 30);
}

TEST(Buffer, OfNothingHoldsNothing) {
  const auto ledger = make_ledger();
  const Buffer buffer(0, MemoryKind::Gathered, ledger);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(ledger->total_bytes(), 0);
}

TEST(GatherArena, ReusesSlotsOfOneSize) {
  const auto ledger = make_ledger();
  detail::GatherArena arena(1000, ledger);
  void* a = arena.acquire(100);
  void* b = arena.acquire(100);
  EXPECT_NE(a, b);
  arena.release(a);
  EXPECT_EQ(arena.acquire(100), a);
  EXPECT_EQ(ledger->bytes(MemoryKind::Gathered), 200);
}

// Slots of a small size stay small beside a giant while there is room.
TEST(GatherArena, KeepsSizesApartBelowItsLimit) {
  const auto ledger = make_ledger();
  detail::GatherArena arena(2000, ledger);
  for (int round = 0; round < 3; ++round) {
    for (const int64_t bytes : {100, 1000, 100}) {
      void* slot = arena.acquire(bytes);
      arena.release(slot);
    }
  }
  EXPECT_EQ(ledger->peak_bytes(), 1100);
}

TEST(GatherArena, NeverHoldsMoreThanItsLimitUnlessInUse) {
  const auto ledger = make_ledger();
  detail::GatherArena arena(2000, ledger);
  // Two at a time, of every size up to the largest, in a rising and in a falling order.
  const std::vector<int64_t> sizes = {10, 20, 150, 300, 700, 700, 1000, 1000, 900, 400, 90, 10};
  for (int round = 0; round < 4; ++round) {
    void* previous = arena.acquire(sizes.front());
    for (size_t i = 1; i < sizes.size(); ++i) {
      void* next = arena.acquire(sizes[i]);
      std::memset(next, 1, static_cast<size_t>(sizes[i]));
      arena.release(previous);
      previous = next;
    }
    arena.release(previous);
  }
  EXPECT_LE(ledger->peak_bytes(), 2000);
  void* a = arena.acquire(1000);
  void* b = arena.acquire(1000);
  void* c = arena.acquire(1000);
  EXPECT_EQ(ledger->bytes(MemoryKind::Gathered), 3000);
  for (void* slot : {a, b, c}) {
    arena.release(slot);
  }
}

// Two units are held at a time, each of two segments; the limit is the most that two need.
TEST(GatherArena, KeepsItsLimitForUnitsOfSeveralSegments) {
  using Unit = std::pair<int64_t, int64_t>;
  const auto ledger = make_ledger();
  detail::GatherArena arena(22, ledger);
  std::deque<std::pair<void*, void*>> held;
  for (int round = 0; round < 3; ++round) {
    for (const auto& [first, second] : {Unit{10, 1}, {6, 5}, {10, 1}, {10, 1}, {6, 5}}) {
      if (held.size() == 2) {
        arena.release(held.front().first);
        arena.release(held.front().second);
        held.pop_front();
      }
      void* slot = arena.acquire(first);
      held.emplace_back(slot, arena.acquire(second));
    }
  }
  EXPECT_EQ(ledger->peak_bytes(), 22);
}

}  // namespace
}  // namespace sherd
