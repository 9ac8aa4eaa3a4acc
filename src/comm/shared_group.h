#pragma once
// Memory that the ranks of one host share, their counters in it, and how they wait for each other.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "comm/exchange.h"
#include "comm/rank_place.h"
#include "launch/pipes.h"
#include "launch/spinning.h"
#include "sherd/communicator.h"
#include "storage/device.h"

namespace sherd::detail {

/// Zeroed bytes in a memory file (memfd) that others map too. It has no name and ends with the last
/// process that maps it. Pages are allocated when touched.
class SharedRegion {
 public:
  SharedRegion() = default;
  /// Creates an empty file. Throws Error(Unavailable) if the system cannot.
  [[nodiscard]] static SharedRegion make();
  /// Takes the file that another process has made.
  explicit SharedRegion(launch::FileDescriptor file) : file_(std::move(file)) {}

  /// Sets the size of a file that was made here, for good. Throws Error(Unavailable).
  void set_size(int64_t bytes);
  /// Maps the file, which must have this size, aligned to huge pages if it is large. Throws
  /// Error(Unavailable).
  void map(int64_t bytes);
  /// Allocates the pages of a range now, huge ones if the range is large and the kernel has them.
  /// Throws Error(OutOfMemory) if memory runs out; later a signal would end the process.
  void populate(const void* begin, int64_t bytes) const;
  /// Does the same without huge pages.
  void take_pages(const void* begin, int64_t bytes) const;
  /// Returns the pages that lie wholly in a range to the system; they read as zeros afterwards.
  void give_back_pages(const void* begin, int64_t bytes) const;

  /// Returns the descriptor to hand to others; before map().
  [[nodiscard]] int file() const { return file_.get(); }
  /// Returns the first byte; after map().
  [[nodiscard]] char* data() const { return static_cast<char*>(mapping_.get()); }

 private:
  void collapse(int64_t first, int64_t end) const;

  launch::FileDescriptor file_;
  Mapping mapping_;
};

/// A number in shared memory that one rank raises and the others wait for. It starts at 0, as fresh
/// shared memory does, and may wrap: only differences are compared.
///
/// [Note: What a counter orders]
/// Everything that the raising rank did before raise_to() has happened for a rank that then finds
/// the value reached. A sleeper registers before its last look at the value, and raise_to() looks
/// for sleepers after it has written the value. These four operations are in one total order
/// (seq_cst), so either the sleeper sees the value or raise_to() sees the sleeper.
class SharedCounter {
 public:
  /// Called by the one rank that owns the counter.
  void raise_to(uint32_t value);
  [[nodiscard]] bool has_reached(uint32_t value) const {
    return reaches(value_.load(std::memory_order_acquire), value);
  }
  /// Returns when the value has been raised, after `limit`, or spuriously.
  void sleep_until_raised(uint32_t value, std::chrono::nanoseconds limit);

 private:
  static bool reaches(uint32_t seen, uint32_t value) {
    return static_cast<int32_t>(seen - value) >= 0;
  }
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};
static_assert(sizeof(SharedCounter) == 8 && std::atomic<uint32_t>::is_always_lock_free);

/// The members of a group, and what to do if one is missing.
struct SharedGroupOptions {
  RankGroup ranks;                ///< of the world
  std::vector<RankPlace> places;  ///< by place in the group
  int host_ranks = 1;             ///< ranks of the world on this host: more than cores do not spin
  FailureNotes notes;
};

/// What a rank waits for, for messages.
struct Awaited {
  const char* what;
  const std::string* unit = nullptr;
  [[nodiscard]] std::string text() const {
    return unit == nullptr ? what : what + (" of unit '" + *unit + "'");
  }
};

/// One rank's end of a group.
class SharedGroup {
 public:
  /// One of the two reductions that a rank has in flight. Its gradients may come in several parts.
  struct Reduction {
    SharedCounter posted;  ///< parts whose gradients may be read, of all reductions so far
    SharedCounter summed;  ///< parts that this rank has summed over all ranks
    int64_t gradients;     ///< their offset in the data region; set before `posted` is raised
    BufferedCommunicator::Identity identity;  ///< whose they are
  };
  static constexpr int kReductions = 2;

  /// Returns the bytes of the region that such a group needs.
  [[nodiscard]] static int64_t region_bytes(int size) {
    return static_cast<int64_t>(sizeof(Lines)) * size;
  }
  /// `region`: mapped by all members, zeroed.
  SharedGroup(SharedRegion region, SharedGroupOptions options)
      : region_(std::move(region)),
        options_(std::move(options)),
        lines_(reinterpret_cast<Lines*>(region_.data())),
        spins_(options_.host_ranks <= launch::usable_cores()) {}
  /// Tells the others that this rank has left.
  ~SharedGroup() { lines_[rank()].departed.store(1, std::memory_order_release); }
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  [[nodiscard]] int rank() const { return options_.ranks.index_of(options_.notes.rank); }
  [[nodiscard]] int size() const { return options_.ranks.size; }
  [[nodiscard]] const RankGroup& ranks() const { return options_.ranks; }
  [[nodiscard]] Reduction& reduction(int member, int number) const {
    return lines_[member].reductions[static_cast<size_t>(number)];
  }

  using CounterOf = c10::function_ref<SharedCounter&(int member)>;
  [[nodiscard]] bool all_reached(CounterOf counter_of, uint32_t value) const;
  /// Blocks until every member's counter has reached the value. Throws Error, naming the others:
  /// PeerLost as soon as one of them has left or ended, Hang when the wait is over (Patience).
  void wait_for_all(CounterOf counter_of, uint32_t value, const Awaited& awaited) const;

  /// As BufferedCommunicator::gather_numbers().
  void gather_numbers(std::span<const double> mine, std::span<double> all);
  /// Ends this rank's wait within 100 ms and marks it as left. Called once, from any thread.
  void cancel(const std::string& why) {
    why_ = why;
    cancelled_.store(true, std::memory_order_release);
    lines_[rank()].departed.store(1, std::memory_order_release);
  }

 private:
  static constexpr size_t kValues = 64;
  // Written by one rank, read by all. Values of two all-reduces: a rank that writes those of the
  // next but one knows that all have entered the next, and so have read these.
  struct alignas(64) Lines {
    SharedCounter entered;  ///< all-reduces
    std::atomic<uint32_t> departed;
    alignas(64) std::array<Reduction, kReductions> reductions;
    alignas(64) std::array<std::array<double, kValues>, 2> values;
  };
  [[nodiscard]] bool spin_until_reached(const SharedCounter& counter, uint32_t value) const;
  void check_members(CounterOf counter_of, uint32_t value, const Awaited& awaited,
                     const Patience* ended) const;

  SharedRegion region_;
  SharedGroupOptions options_;
  Lines* lines_;
  bool spins_;
  uint32_t rounds_ = 0;
  std::string why_;  ///< of cancel(): read after cancelled_
  std::atomic<bool> cancelled_ = false;
};

}  // namespace sherd::detail
