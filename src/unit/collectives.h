#pragma once
// The one place that every collective of a model passes, and what allocates, so that a failure says
// where it happened.

#include <cstdint>
#include <string>
#include <utility>

#include "sherd/error.h"
#include "sherd/world.h"
#include "storage/own_work.h"
#include "storage/profiler_range.h"

namespace sherd::detail {

/// Where in its step a model is.
enum class Phase { Construction, Forward, Backward, Optimizer };

/// Runs what meets other ranks or allocates. An Error is thrown on with operation, unit, phase,
/// step and rank.
class Collectives {
 public:
  /// `compares`: before each collective all ranks compare what it is, see ShardOptions::debug.
  Collectives(World world, bool compares) : world_(std::move(world)), compares_(compares) {}

  void set_phase(Phase phase) { phase_ = phase; }
  void set_step(int64_t step) { step_ = step; }
  /// Whether ranks are gone or do something else, so that nothing can be waited for any more.
  [[nodiscard]] bool peers_lost() const { return peers_lost_; }

  /// Runs a collective of `unit`, which all ranks reach in the same order.
  template <class Fn>
  auto run(const char* operation, const std::string& unit, Fn&& fn) {
    if (compares_) {
      compare_with_other_ranks(operation, unit);
    }
    return wait(operation, unit, std::forward<Fn>(fn));
  }
  /// Runs what may wait for other ranks without being a collective of its own.
  template <class Fn>
  auto wait(const char* operation, const std::string& unit, Fn&& fn) {
    const ProfilerRange range(operation);
    return locally(operation, unit, std::forward<Fn>(fn));
  }
  /// Runs what allocates, and does not wait for other ranks.
  template <class Fn>
  auto locally(const char* operation, const std::string& unit, Fn&& fn) {
    try {
      return own_work(std::forward<Fn>(fn));
    } catch (const Error& error) {
      peers_lost_ = peers_lost_ || error.is_of_peers() || error.code() == ExitCode::RanksDisagree;
      throw Error(error.code(), where(operation, unit) + error.what());
    }
  }

 private:
  void compare_with_other_ranks(const char* operation, const std::string& unit);
  [[nodiscard]] std::string where(const char* operation, const std::string& unit) const;

  World world_;
  bool compares_;
  bool peers_lost_ = false;
  Phase phase_ = Phase::Construction;
  int64_t step_ = 1;
};

}  // namespace sherd::detail
