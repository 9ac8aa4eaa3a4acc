#pragma once
// The ranks of one host that share memory: what they see of each other, and how they wait.

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/roster.h"
#include "comm/shared_memory/counter.h"
#include "comm/shared_memory/rank_place.h"
#include "comm/shared_memory/region.h"
#include "sherd/communicator.h"
#include "sherd/error.h"

namespace sherd::detail {

/// Who is in a group, and what is done when one is missing.
struct SharedGroupOptions {
  RankGroup ranks;                ///< of the world
  int rank = 0;                   ///< this one's place in it
  std::vector<RankPlace> places;  ///< by place in the group
  int host_ranks = 1;             ///< ranks of the world on this host: more than cores do not spin
  std::chrono::milliseconds timeout{0};
  Roster roster;
};

/// What went wrong, for all ranks to agree on; empty where nothing did.
template <class Fn>
[[nodiscard]] std::string fault_of(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Throws Error(Unavailable): this rank's own fault, or where it has none that of another.
[[noreturn]] void refuse_shared_memory(const std::string& fault, int rank_of_world);

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
    SharedCounter posted;  ///< parts whose gradients lie ready, of all reductions so far
    SharedCounter summed;  ///< parts that this rank has added up over all ranks
    int64_t gradients;     ///< where they begin in the data region; before `posted` is raised
    BufferedCommunicator::Identity identity;  ///< whose they are
  };
  static constexpr int kReductions = 2;

  /// Bytes of the region that such a group needs.
  [[nodiscard]] static int64_t region_bytes(int size);
  /// `region`: mapped by all of them, zeroed.
  SharedGroup(SharedRegion region, SharedGroupOptions options);
  /// The others are told that this rank has left.
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  [[nodiscard]] int rank() const { return options_.rank; }
  [[nodiscard]] int size() const { return options_.ranks.size; }
  [[nodiscard]] int rank_of_world(int member) const { return options_.ranks.rank_at(member); }
  [[nodiscard]] Reduction& reduction(int member, int number) const {
    return lines_[member].reductions[static_cast<size_t>(number)];
  }

  using CounterOf = std::function<SharedCounter&(int member)>;
  [[nodiscard]] bool all_reached(const CounterOf& counter_of, uint32_t value) const;
  /// Returns when every member's counter has reached the value. Throws Error, naming those whose
  /// has not: PeerLost as soon as one of them has left or ended, Hang when the wait
  /// is over (Patience).
  void wait_for_all(const CounterOf& counter_of, uint32_t value, const Awaited& awaited) const;

  /// As BufferedCommunicator::gather_numbers().
  void gather_numbers(std::span<const double> mine, std::span<double> all);
  /// Throws Error(Unavailable) on all ranks where `fault` is not empty on one. Collective.
  void agree_on_fault(const std::string& fault);
  /// Ends what this rank waits for, within 100 ms; the others are told that it has left. Called
  /// from any thread, once.
  void cancel(const std::string& why);

 private:
  static constexpr size_t kValues = 64;
  // What one rank writes and all read. Values of two all-reduces: a rank that writes those of the
  // next but one knows that all have entered the next, and so have read these.
  struct alignas(64) Lines {
    SharedCounter entered;  ///< all-reduces
    std::atomic<uint32_t> departed;
    alignas(64) std::array<Reduction, kReductions> reductions;
    alignas(64) std::array<std::array<double, kValues>, 2> values;
  };
  [[nodiscard]] Lines& mine() const { return lines_[rank()]; }
  [[nodiscard]] bool spin_until_reached(const SharedCounter& counter, uint32_t value) const;
  void check_members(const CounterOf& counter_of, uint32_t value, const Awaited& awaited,
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
