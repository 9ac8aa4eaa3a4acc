#pragma once
// The one state machine of the engine: a model's way through forward, backward and update.
//
// Read forward.cpp for a unit's forward, backward.cpp for its backward, between_steps.cpp for what
// optimizers, checkpoints and loaders do to shards, failure.cpp for what an exception leaves,
// captured.cpp for micro-batches that are graphs of the device.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "step/counted_scope.h"
#include "step/gradients.h"
#include "step/master_views.h"
#include "step/reduction_queue.h"
#include "step/schedule.h"
#include "step/unit_uses.h"
#include "storage/device_graph.h"
#include "unit/model.h"

namespace sherd::detail {

class UnitUse;

/// What may be torn: all values, those of trainable parameters alone, or an optimizer's moments.
enum class State : std::uint8_t { Values, TrainedValues, Optimizer };

/// Where a unit is in the step.
struct UnitProgress {
  int forward_depth = 0;  ///< forwards of it under way
  UnitUses uses;
  bool called = false;  ///< with a backward to come, since it was reduced last
  [[nodiscard]] bool in_forward() const { return forward_depth > 0; }
  [[nodiscard]] bool awaits_backward() const { return uses.size() > 0; }
  [[nodiscard]] bool in_backward() const { return uses.any_in_backward(); }
};

/// What the host knows of a captured micro-batch, which it does not see when that runs.
struct CapturedMicroBatch {
  std::optional<DeviceGraph> graph;
  std::vector<SegmentGradients::Known> left;  ///< by trainable segment; `used`: by it alone
  std::vector<Communicator::Counts> counts;   ///< by communicator
  std::vector<int> order;                     ///< of units in forward
};

/// ≙ FSDPState of the root. Owns phase, schedule, what is gathered ahead, reductions under way and
/// what is known after a failure; all data are the model's. Calls only go down: from autograd and
/// user code to the step, from it to units, segments, communicators. What gathers, reduces or
/// writes shards is collective: all ranks run the same model and call it in the same order.
class Step {
 public:
  /// Writes the travelling shards. Collective.
  explicit Step(Model& model);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  [[nodiscard]] Model& model() { return model_; }
  [[nodiscard]] const Model& model() const { return model_; }

  // ---- The forward of a unit (forward.cpp), in this order ----

  /// Checks that the unit may be called and enters it. Returns how many of its forwards were under
  /// way, for whichever of the two ends follows.
  [[nodiscard]] int begin_forward(UnitState& unit);
  /// Gathers its parameters, and those of the units to come.
  void pre_forward(UnitState& unit);
  /// Leaves it; `use`, where a backward of it will come.
  void post_forward(UnitState& unit, UnitUse* use, int depth_before);
  /// Instead, after an exception: leaves it, and gives up the step where no other forward runs.
  void leave_forward(UnitState& unit, int depth_before);
  /// Whether a forward that begins now is one that no backward will follow.
  [[nodiscard]] bool is_evaluating() const;
  /// While it lives, forwards are those that activation checkpointing will repeat: they run without
  /// gradients, and are no evaluation.
  [[nodiscard]] CountedScope forwards_to_be_repeated() { return CountedScope(to_be_repeated_); }
  /// While it lives, forwards are the repeated ones.
  [[nodiscard]] CountedScope repeated_forwards() { return CountedScope(repeated_); }

  // ---- The backward of a unit (backward.cpp) ----

  /// A gradient of the use has arrived: gathers the parameters.
  void pre_backward(UnitUse& use);
  /// The use's backward has ended, every gradient of its parameters is written: reduces them where
  /// it was the last.
  void post_backward(UnitUse& use);
  /// The use will never run backward again. May be called on autograd's own threads.
  void drop_use(const UnitUse& use) noexcept;

  // ---- Between steps (between_steps.cpp) ----

  /// Throws Error(Usage), naming `operation`, inside a forward or a backward of the model. Gives up
  /// a backward that an exception has ended. Not collective.
  void require_between_steps(const std::string& operation);
  /// Gathers the units and waits for it: until their next forward, backward or reshard().
  void unshard(const std::vector<UnitState*>& units);
  /// Frees them, however they were gathered. Not collective.
  void reshard(const std::vector<UnitState*>& units);
  /// Frees what is gathered, before shards are read or rewritten. Not collective.
  void reshard_all();
  /// Frees what is gathered and waits until no rank reads this rank's shards, so that they may be
  /// written; publish() must follow.
  void await_readers();
  /// Rewrites the travelling shards from the masters.
  void publish();
  /// The same, after values of all parameters were written from outside.
  void publish_values();
  void zero_grad();
  /// Which units are kept gathered has changed. Not collective.
  void limit_gathered();
  /// Between them units cannot be called nor shards written: with_full_parameters() is under way.
  void set_full_parameters_shown(bool shown) { full_parameters_shown_ = shown; }

  /// [Note: Masters that others write]
  /// LibTorch's optimizers write parameters through `.data()`, which leaves no trace (no version
  /// changes), and step whenever they like. So, once views of the masters have been handed out:
  /// - whenever a step could follow (at the end of a backward, of a forward that no backward
  ///   follows, of a look at full parameters; when the last graph that waited for a backward is
  ///   freed) ranks wait until no rank reads the shards: the *update window* opens;
  /// - before anything is gathered again the masters are published as if they had changed: it
  ///   closes.
  /// In fp32 that costs counters, in bf16 one pass over this rank's shard.
  ///
  /// On a device autograd may free a graph on a thread of its own, while the thread that drives the
  /// step goes on. That thread only leaves a note; the driving thread opens the window at its next
  /// entry. Until then nothing of the step is changed, and no rank reads a device's shards in
  /// place.
  [[nodiscard]] torch::OrderedDict<std::string, at::Tensor> hand_out_masters();
  [[nodiscard]] bool masters_handed_out() const { return master_views_.handed_out(); }
  [[nodiscard]] bool awaits_update_window() const {
    return masters_handed_out() && !update_window_is_open_;
  }
  // Without effect before views have been handed out.
  void open_update_window();
  void close_update_window();
  /// After an exception, when ranks cannot be waited for: an update may follow nevertheless.
  void expect_update() { update_window_is_open_ = masters_handed_out(); }

  [[nodiscard]] Gradients& gradients() { return gradients_; }
  [[nodiscard]] ReductionQueue& reductions() { return reductions_; }
  /// The order in which forwards call units, as far as it is known.
  [[nodiscard]] const std::vector<int>& forward_order() const { return schedule_.order(); }

  // ---- Micro-batches as graphs of the device (captured.cpp) ----

  /// [Note: Captured micro-batches]
  /// A graph does on the device what was given to it in the capture, and the host does none of it.
  /// So it begins and ends between micro-batches, with all units sharded and all streams joined;
  /// capture_key() names what it depends on beside the values of tensors, and what it leaves is
  /// noted once and applied after each launch. Slots, reduce buffers and gradient shards have its
  /// addresses: it holds while MemoryLedger::changes() stays as it is.
  ///
  /// Brings the model there; throws Error(Usage) for what no graph can do. Not collective.
  void begin_captured();
  /// After begin_captured(). Two micro-batches with the same key differ in values alone.
  [[nodiscard]] std::string capture_key() const;
  /// After begin_captured(): captures, on `stream`. Gradients are as before then, whether it ends
  /// in an exception or not.
  [[nodiscard]] CapturedMicroBatch capture(const c10::Stream& stream, const DeviceGraph* beside,
                                           const std::function<void()>& micro_batch);
  /// After begin_captured(): runs it.
  void launch(const CapturedMicroBatch& captured);
  /// Units of the last forward.
  [[nodiscard]] const std::vector<int>& order() const { return schedule_.begun(); }

  // ---- After an exception (failure.cpp) ----

  /// Where the last backward has failed, and nothing has followed it yet: gives it up.
  void leave_failed_backward();
  /// [Note: Torn states]
  /// Values, or an optimizer's moments, are about to be written by `operation`. Where that ends in
  /// an exception, writing_ended() never comes: some have been written and others not, perhaps
  /// others on other ranks. Any use of them then throws, until a load has written
  /// all of them. A transfer to or from a disk that fails has the same effect, wherever in the
  /// step: what it did not move is lost.
  void writing_begins(State state, const std::string& operation);
  void writing_ended(State state);
  /// Throws Error(Usage) where a state is torn.
  void check_not_torn(const std::string& operation);
  /// Returns the operation that left values torn; unset: none did. Parameters that it may have left
  /// so have no values from then on.
  [[nodiscard]] std::optional<std::string> torn_values();
  [[nodiscard]] bool all_have_values() const;
  /// The same, and that no exchange has failed which values came from: waits for the device.
  void check_whole(const std::string& operation);
  [[nodiscard]] int64_t failed_backwards() const { return failed_backwards_; }

 private:
  enum class Backward { None, Running, Failed };
  class FailureWatch;

  [[nodiscard]] UnitProgress& progress(const UnitState& unit) {
    return progress_[static_cast<size_t>(unit.index())];
  }
  [[nodiscard]] const UnitProgress& progress(const UnitState& unit) const {
    return progress_[static_cast<size_t>(unit.index())];
  }
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] bool in_forward() const;
  [[nodiscard]] bool is_on_thread_of_autograd() const;
  [[nodiscard]] bool backward_has_failed() const;

  void begin_iteration();
  void reshard_after_forward(UnitState& unit);

  void begin_backward(const std::shared_ptr<Step>& self);
  void check_settings_of_backward() const;
  void check_each_unit_is_summed_once() const;
  void reduce_unit(UnitState& unit);
  void reduce_segment(UnitState& unit, SegmentGradients& gradients);
  [[nodiscard]] static bool sums_over_all_ranks(const UnitState& unit);
  [[nodiscard]] bool accumulates_unsharded(const UnitState& unit) const;
  [[nodiscard]] bool has_gradients_to_reduce(const UnitState& unit) const;
  void reshard_after_backward(UnitState& unit);
  void finish_unit(UnitState& unit);
  void end_backward();

  void gather_ahead(const std::vector<int>& units, bool in_evaluation);
  void drop_gathered_ahead(size_t keep);
  void show_gradients();
  void refuse_what_is_no_graph() const;
  [[nodiscard]] std::vector<SegmentGradients*> trained_gradients() const;
  void refuse_while_full_parameters_shown(const std::string& what) const;
  void abandon();
  void gather_what_runs();
  void tear_what_was_lost();

  Model& model_;
  std::deque<UnitProgress> progress_;  ///< by unit
  Schedule schedule_;
  std::deque<UnitState*> gathered_ahead_;
  ReductionQueue reductions_;
  Gradients gradients_{model_};
  MasterViews master_views_;
  bool update_window_is_open_ = false;
  std::atomic<std::thread::id> driver_;              ///< the thread of the last forward
  std::atomic<bool> graph_was_freed_aside_ = false;  ///< by another thread, since the last entry
  bool full_parameters_shown_ = false;
  bool values_checked_ = false;
  int to_be_repeated_ = 0;
  int repeated_ = 0;
  Backward backward_ = Backward::None;
  std::shared_ptr<std::atomic<bool>> callbacks_are_gone_;  ///< autograd's, of the last backward
  int64_t failed_backwards_ = 0;
  std::map<State, std::string> torn_by_;  ///< the operation that left it so
};

}  // namespace sherd::detail
