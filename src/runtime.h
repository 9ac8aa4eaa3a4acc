#pragma once
// A sharded model at run time: its units, the memory they share, and the progress of a step.

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "gather_arena.h"
#include "model_buffer.h"
#include "model_communicators.h"
#include "optim/optim_views.h"
#include "profiler_range.h"
#include "reduction_queue.h"
#include "schedule.h"
#include "sherd/error.h"
#include "sherd/mesh.h"
#include "sherd/options.h"
#include "unit_state.h"

namespace sherd::detail {

enum class Phase { Construction, Forward, Backward, Optimizer };

/// ≙ FSDPState of the root. Owns everything; modules reach it through the units they hold.
class Runtime : public std::enable_shared_from_this<Runtime> {
 public:
  /// `mesh`: rows are the groups that parameters are cut over.
  Runtime(Mesh mesh, ShardOptions options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Adds a unit before attach(); the first is the root.
  UnitState& add_unit(std::string name, int level, UnitSettings settings,
                      std::vector<UnitParameter> parameters);
  /// Allocates what the units need and shards the parameters. Collective.
  void attach();
  /// Rewrites the travelling shards from the masters. Collective.
  void publish();
  /// Frees whatever is still gathered, before shards are rewritten.
  void reshard_all();

  // Progress of a step, told by units.
  void begin_forward(UnitState& unit);
  void end_forward(const UnitState& unit);
  void prefetch_in_forward();
  void begin_backward();
  void prefetch_in_backward(const UnitState& unit);
  void end_backward();
  /// Gives up the step under way after an exception, so that the next one starts clean.
  void abandon();
  /// A unit's forward has ended in an exception.
  void forward_failed();
  /// A prefetched unit has been asked for.
  void consumed(const UnitState& unit);
  /// Between these, forwards are those of activation checkpointing.
  void begin_recompute() { ++recomputing_; }
  void end_recompute() { --recomputing_; }

  void zero_grad();
  void set_gradient_divide_factor(double factor);
  /// Which units are kept gathered has been set anew.
  void limit_gathered();
  /// Of the slots that units are gathered in, in a training step.
  [[nodiscard]] int64_t gathered_limit_bytes() const;
  [[nodiscard]] float gradient_scale() const { return gradient_scale_; }
  /// The clip factor that the gradients are still to be multiplied by.
  [[nodiscard]] double pending_gradient_factor() const { return pending_gradient_factor_; }
  void set_pending_gradient_factor(double factor) { pending_gradient_factor_ = factor; }
  /// Multiplies the gradients by the clip factor now, for readers other than the fused optimizer.
  void apply_gradient_factor();
  /// Throws where micro-batches have left gradients that are not sums over all ranks yet.
  void check_gradients_are_reduced(const char* caller) const;
  /// Throws where an optimizer uses gradients up in backward.
  void check_gradients_are_kept(const char* caller) const;

  [[nodiscard]] Mesh& mesh() { return mesh_; }
  [[nodiscard]] const Mesh& mesh() const { return mesh_; }
  [[nodiscard]] const ShardOptions& options() const { return options_; }
  [[nodiscard]] Communicator& communicator() { return communicators_->shards(); }
  [[nodiscard]] const ModelCommunicators& communicators() const { return *communicators_; }
  [[nodiscard]] ReductionQueue& reductions() { return *reductions_; }
  [[nodiscard]] GatherArena& arena() { return *arena_; }
  [[nodiscard]] std::vector<std::unique_ptr<UnitState>>& units() { return units_; }
  [[nodiscard]] const std::vector<std::unique_ptr<UnitState>>& units() const { return units_; }
  [[nodiscard]] std::vector<ModelBuffer>& buffers() { return buffers_; }
  [[nodiscard]] OptimViews& optim_views() { return optim_views_; }
  [[nodiscard]] bool backward_active() const { return backward_active_; }
  /// Between them units cannot be called nor shards written: with_full_parameters() is under way.
  [[nodiscard]] bool full_parameters_shown() const { return full_parameters_shown_; }
  void set_full_parameters_shown(bool shown) { full_parameters_shown_ = shown; }
  /// Throws Error(Usage) for what was built on meta and has no values yet.
  void require_values(const std::string& operation) const;
  [[nodiscard]] const std::shared_ptr<MemoryLedger>& ledger() const { return ledger_; }
  [[nodiscard]] int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }
  void set_phase(Phase phase) { phase_ = phase; }

  /// Runs a collective of `unit`: named(), after all ranks have agreed on what it is, where
  /// ShardOptions::debug asks for that.
  template <class Fn>
  auto collective(const char* operation, const std::string& unit, Fn&& fn) {
    if (options_.debug) {
      compare_with_other_ranks(operation, unit);
    }
    return named(operation, unit, std::forward<Fn>(fn));
  }
  /// Runs what may wait for other ranks; a failure is reported with operation, unit, phase, step
  /// and rank.
  template <class Fn>
  auto named(const char* operation, const std::string& unit, Fn&& fn) {
    const ProfilerRange range(operation);
    try {
      return fn();
    } catch (const Error& error) {
      peers_lost_ = peers_lost_ || error.is_of_peers();
      throw Error(error.code(), where(operation, unit) + error.what());
    }
  }

 private:
  void compare_with_other_ranks(const char* operation, const std::string& unit);
  [[nodiscard]] std::string where(const char* operation, const std::string& unit) const;
  void prefetch(const std::vector<int>& targets, bool in_evaluation);
  void check_settings_of_backward() const;
  void check_each_unit_is_summed_once() const;
  void drop_prefetched(size_t keep);
  void refuse_while_full_parameters_shown(const std::string& what) const;
  [[nodiscard]] std::vector<int> first_order() const;

  Mesh mesh_;
  ShardOptions options_;
  std::shared_ptr<MemoryLedger> ledger_ = std::make_shared<MemoryLedger>();
  std::unique_ptr<ModelCommunicators> communicators_;
  std::unique_ptr<ReductionQueue> reductions_;
  std::unique_ptr<GatherArena> arena_;
  std::vector<std::unique_ptr<UnitState>> units_;
  std::vector<ModelBuffer> buffers_;
  Schedule schedule_;
  std::deque<UnitState*> prefetched_;
  OptimViews optim_views_{*this};
  bool full_parameters_shown_ = false;
  bool backward_active_ = false;
  bool backward_failed_ = false;
  bool values_checked_ = false;
  bool peers_lost_ = false;
  int recomputing_ = 0;
  float gradient_scale_ = 1.0F;
  double pending_gradient_factor_ = 1.0;
  Phase phase_ = Phase::Construction;
  int64_t step_ = 1;
};

}  // namespace sherd::detail
