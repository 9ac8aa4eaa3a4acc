#pragma once
// The one place that every collective of a model passes, and what allocates, so that a failure says
// where it happened.

#include <cstdint>
#include <string>
#include <utility>

#include "sherd/error.h"
#include "sherd/world.h"
#include "storage/own_work.h"

namespace sherd::detail {

/// Where in its step a model is.
enum class Phase { Construction, Forward, Backward, Optimizer };

/// What an operation has to do with other ranks.
enum class Work {
  Collective,  ///< all ranks reach it in the same order
  Wait,        ///< it may wait for other ranks without being a collective of its own
  Local,       ///< it allocates, and waits for no other rank
};

/// Runs what meets other ranks or allocates. An Error is thrown on with operation, unit, phase,
/// step and rank.
class Collectives {
 public:
  /// `compares`: before each collective all ranks compare what it is, see ShardOptions::debug.
  Collectives(World world, bool compares) : world_(std::move(world)), compares_(compares) {}

  void set_phase(Phase phase) { phase_ = phase; }
  void set_step(int64_t step) { step_ = step; }
  /// Returns true if ranks are gone or out of step, so that nothing can be waited for any more.
  [[nodiscard]] bool peers_lost() const { return peers_lost_; }

  /// Runs an operation of `unit`. Its exceptions pass throw_on() (own_work.h).
  template <class Fn>
  auto run(Work work, const char* operation, const std::string& unit, Fn&& fn) {
    if (work == Work::Collective && compares_) {
      compare_with_other_ranks(operation, unit);
    }
    const auto range = work == Work::Local ? nullptr : profiler_range(operation);
    try {
      return std::forward<Fn>(fn)();
    } catch (...) {
      throw_with_place(operation, unit);
    }
  }

 private:
  /// Returns "all-gather of unit 'block0', in forward of step 3".
  [[nodiscard]] std::string place_of(const char* operation, const std::string& unit) const;
  void compare_with_other_ranks(const char* operation, const std::string& unit);
  /// Called in a handler.
  [[noreturn]] void throw_with_place(const char* operation, const std::string& unit);

  World world_;
  bool compares_;
  bool peers_lost_ = false;
  Phase phase_ = Phase::Construction;
  int64_t step_ = 1;
};

}  // namespace sherd::detail
