#pragma once
// The one state machine of the engine: a model's way through forward, backward and update.
//
// Read forward.cpp for a unit's forward, backward.cpp for its backward, between_steps.cpp for what
// optimizers, checkpoints and loaders do to shards, failure.cpp for what an exception leaves,
// torch_optimizers.cpp for LibTorch's optimizers, captured.cpp for micro-batches that are CUDA
// graphs, activation_checkpoint.cpp for units that are recomputed in backward, autograd_hooks.cpp
// for gradients of parameters.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/util/ScopeExit.h>
#include <torch/ordered_dict.h>

#include "step/gradients.h"
#include "step/schedule.h"
#include "storage/activation_store.h"
#include "storage/device.h"
#include "unit/model.h"

namespace sherd::detail {

class Step;

/// What may be torn: all values, those of trainable parameters alone, or an optimizer's moments.
enum class State : std::uint8_t { Values, TrainedValues, Optimizer };

/// One call of a unit that a backward may follow. The call's part of autograd's graph holds it:
/// when that is freed without a backward, the step stops waiting for it.
class UnitUse {
 public:
  UnitUse(std::shared_ptr<Step> step_of_unit, UnitState& called)
      : step(std::move(step_of_unit)), unit(called) {}
  ~UnitUse();
  UnitUse(const UnitUse&) = delete;
  UnitUse& operator=(const UnitUse&) = delete;

  const std::shared_ptr<Step> step;  ///< keeps the unit alive
  UnitState& unit;
  bool in_backward = false;            ///< its backward is running, and needs the parameters
  std::shared_ptr<SavedByCall> saved;  ///< on the host; null: nothing goes there
};

/// Where a unit is in the step, and its uses: calls whose backward is running or may still come.
class UnitProgress {
 public:
  int forward_depth = 0;  ///< number of its forwards that are running
  bool called = false;    ///< with a backward to come, since it was reduced last
  [[nodiscard]] bool in_forward() const { return forward_depth > 0; }

  // The thread that lets go of a graph last frees it: on a device perhaps one of autograd's own,
  // while the host goes on. So uses are added and removed under a lock.

  /// Adds a use, unless it is there.
  void add(UnitUse* use) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(uses_, use) == uses_.end()) {
      uses_.push_back(use);
    }
  }
  /// Returns true if it was there.
  bool remove(const UnitUse* use) {
    const std::lock_guard lock(mutex_);
    return std::erase(uses_, use) > 0;
  }
  void remove_uses_in_backward() {
    const std::lock_guard lock(mutex_);
    std::erase_if(uses_, [](const UnitUse* use) { return use->in_backward; });
  }
  void leave_backward() {
    const std::lock_guard lock(mutex_);
    std::ranges::for_each(uses_, [](UnitUse* use) { use->in_backward = false; });
  }
  [[nodiscard]] size_t uses() const {
    const std::lock_guard lock(mutex_);
    return uses_.size();
  }
  [[nodiscard]] bool awaits_backward() const { return uses() > 0; }
  [[nodiscard]] bool in_backward() const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(uses_, &UnitUse::in_backward);
  }
  /// Leaves the backward and forgets all calls.
  void forget() {
    leave_backward();
    const std::lock_guard lock(mutex_);
    uses_.clear();
    called = false;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<UnitUse*> uses_;
};

/// A captured micro-batch, and what it changes on the host, which does not see it run.
struct CapturedMicroBatch {
  std::optional<DeviceGraph> graph;
  std::vector<SegmentGradients::Known> after;  ///< by trainable segment; `used`: by it alone
  std::vector<Communicator::Counts> counts;    ///< by communicator
  std::vector<int> order;                      ///< of units in forward
};

/// This rank's part of the master of a trainable parameter, for optimizers of LibTorch.
struct MasterView {
  const UnitParameter& parameter;
  HeldPart held;
  at::Tensor tensor;  ///< [n], a leaf that requires gradients
};

/// States of the generators that dropout draws from: the host's, and the device's outside of
/// captures.
using GeneratorStates = std::vector<std::pair<at::Generator, at::Tensor>>;
[[nodiscard]] GeneratorStates generator_states(c10::Device device);

/// Counts up, and down again when the returned object is destroyed.
[[nodiscard]] inline auto counted(int& count) {
  ++count;
  return c10::make_scope_exit([&count] { --count; });
}

/// ≙ FSDPState of the root. Owns the phase, the schedule, the units gathered ahead, the running
/// reductions and the knowledge after a failure; all data are the model's. Calls only go down: from
/// autograd and user code to the step, from it to units, segments, communicators. Functions that
/// gather, reduce or write shards are collective: all ranks run the same model and call them in the
/// same order.
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

  /// Checks that the unit may be called and enters it. Returns the number of its forwards that were
  /// running, which post_forward() or leave_forward() needs.
  [[nodiscard]] int begin_forward(UnitState& unit);
  /// Gathers its parameters, and those of the units that follow.
  void pre_forward(UnitState& unit);
  /// Leaves it. `use`: null if no backward of it will come.
  void post_forward(UnitState& unit, UnitUse* use, int depth_before);
  /// Instead, after an exception: leaves it, and gives up the step if no other forward runs.
  void leave_forward(UnitState& unit, int depth_before);
  /// Returns true if no backward will follow a forward that begins now.
  [[nodiscard]] bool is_evaluating() const;
  /// While it lives, forwards are those that activation checkpointing will repeat: they run without
  /// gradients, and are no evaluation.
  [[nodiscard]] auto forwards_to_be_repeated() { return counted(to_be_repeated_); }
  /// While it lives, forwards are the repeated ones.
  [[nodiscard]] auto repeated_forwards() { return counted(repeated_); }

  // ---- The backward of a unit (backward.cpp) ----

  /// Once per backward, before its first unit. `self`: this.
  void begin_backward(const std::shared_ptr<Step>& self);
  /// A gradient of the use has arrived: gathers the parameters.
  void pre_backward(UnitUse& use);
  /// The use's backward has ended, and every gradient of its parameters is written: reduces them
  /// after the last use.
  void post_backward(UnitUse& use);
  /// The use will never run backward again. May be called on autograd's own threads.
  void drop_use(const UnitUse& use) noexcept;

  // ---- Between steps (between_steps.cpp) ----

  /// Throws Error(Usage), naming `operation`, inside a forward or a backward of the model. Gives up
  /// a backward that an exception has ended. Not collective.
  void require_between_steps(const std::string& operation);
  /// Gathers the units and waits for it: until their next forward, backward or reshard().
  void unshard(const std::vector<UnitState*>& units);
  /// Frees the units, however they were gathered. Not collective.
  void reshard(const std::vector<UnitState*>& units);
  /// Frees all gathered units, before shards are read or rewritten. Not collective.
  void reshard_all();
  /// Frees all gathered units and waits until no rank reads this rank's shards. They may be written
  /// then; publish() must follow.
  void await_readers();
  /// Rewrites the travelling shards from the masters.
  void publish();
  /// The same, after values of all parameters were written from outside.
  void publish_values();
  void zero_grad();
  /// Called after a change of the units that stay gathered. Not collective.
  void limit_gathered();
  /// While shown, units cannot be called nor shards written: with_full_parameters() is running.
  void set_full_parameters_shown(bool shown) { full_parameters_shown_ = shown; }

  // ---- Optimizers of LibTorch (torch_optimizers.cpp) ----

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
  [[nodiscard]] bool masters_handed_out() const { return !master_views_.empty(); }
  [[nodiscard]] bool awaits_update_window() const {
    return masters_handed_out() && !update_window_is_open_;
  }
  // These do nothing before views have been handed out.
  void open_update_window();
  void close_update_window();
  /// After an exception, when ranks cannot be waited for: an update may follow nevertheless.
  void expect_update() { update_window_is_open_ = masters_handed_out(); }

  [[nodiscard]] Gradients& gradients() { return gradients_; }
  [[nodiscard]] const Schedule& schedule() const { return schedule_; }

  // ---- Micro-batches as graphs of the device (captured.cpp) ----

  /// [Note: Captured micro-batches]
  /// A CUDA graph repeats what the device did in the capture, and nothing that the host did. So it
  /// begins and ends between micro-batches, with all units sharded and all streams joined;
  /// capture_key() names what it depends on besides the values of tensors, and what it leaves is
  /// recorded once and applied after each launch. It holds the addresses of slots, reduce buffers
  /// and gradient shards: it is valid while MemoryLedger::changes() stays the same.
  ///
  /// Brings the model between micro-batches. Throws Error(Usage) for what no graph can do. Not
  /// collective.
  void begin_captured();
  /// After begin_captured(). Two micro-batches with the same key differ in values alone.
  [[nodiscard]] std::string capture_key() const;
  /// After begin_captured(): captures, on `stream`. Leaves gradients as they were, also if it ends
  /// in an exception.
  [[nodiscard]] CapturedMicroBatch capture(const c10::Stream& stream, const DeviceGraph* beside,
                                           const std::function<void()>& micro_batch);
  /// After begin_captured(): runs it.
  void launch(const CapturedMicroBatch& captured);

  // ---- After an exception (failure.cpp) ----

  /// Gives up the last backward if it has failed and nothing has followed it yet.
  void leave_failed_backward();
  /// [Note: Torn states]
  /// `operation` is about to write values, or an optimizer's moments. If it ends in an exception,
  /// writing_ended() never comes: some have been written and others not, perhaps others on other
  /// ranks. Any use of them then throws, until a load has written all of them. A failed transfer to
  /// or from a disk has the same effect, wherever in the step: what it did not move is lost.
  void writing_begins(State state, const std::string& operation);
  void writing_ended(State state);
  /// Throws Error(Usage) if a state is torn.
  void check_not_torn(const std::string& operation);
  /// Returns the operation that left values torn, if one did. Parameters that it may have torn have
  /// no values from then on.
  [[nodiscard]] std::optional<std::string> torn_values();
  [[nodiscard]] bool all_have_values() const;
  /// As check_not_torn(). Also waits for the device, and throws if an exchange that values came
  /// from has failed.
  void check_whole(const std::string& operation);
  [[nodiscard]] int64_t failed_backwards() const { return failed_backwards_; }

 private:
  enum class Backward { None, Running, Failed };

  [[nodiscard]] UnitProgress& progress(const UnitState& unit) {
    return progress_[static_cast<size_t>(unit.index())];
  }
  [[nodiscard]] const UnitProgress& progress(const UnitState& unit) const {
    return progress_[static_cast<size_t>(unit.index())];
  }
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] bool in_forward() const;

  void check_optimizer_in_backward() const;
  void reduce_unit(UnitState& unit);
  [[nodiscard]] bool has_gradients_to_reduce(const UnitState& unit) const;
  void reshard_after_backward(UnitState& unit);
  void finish_unit(UnitState& unit);
  void end_backward();

  void check_values_once();
  void refuse_writes_in_forward(const UnitState& unit);
  void gather_ahead(const std::vector<int>& units, bool in_evaluation);
  void drop_gathered_ahead(size_t keep);
  /// Before a backward: forgets the gradients of master views whose `.grad` has been reset, and
  /// takes those that have been replaced.
  void take_gradient_changes();
  /// After a backward: points each `.grad` at the gradient shard; a parameter that no rank used has
  /// none.
  void show_gradients();
  void refuse_while_full_parameters_shown(const std::string& what) const;
  void abandon();
  void mark_lost_as_torn();

  Model& model_;
  std::deque<UnitProgress> progress_;  ///< by unit
  Schedule schedule_;
  std::deque<UnitState*> gathered_ahead_;
  Gradients gradients_{model_};
  std::vector<MasterView> master_views_;
  bool update_window_is_open_ = false;
  std::atomic<std::thread::id> driver_;              ///< the thread of the last forward
  std::atomic<bool> graph_freed_elsewhere_ = false;  ///< by another thread, since the last entry
  bool full_parameters_shown_ = false;
  bool values_checked_ = false;
  int to_be_repeated_ = 0;
  int repeated_ = 0;
  Backward backward_ = Backward::None;
  /// Held by autograd's callback that ends the last backward. If a backward fails, autograd
  /// destroys its callback without calling it, on a device by a thread of its own and perhaps when
  /// the next step has begun.
  std::weak_ptr<void> end_callback_;
  int64_t failed_backwards_ = 0;
  std::map<State, std::string> torn_by_;  ///< the operation that left it so
};

/// What a handle of a sharded model holds: the data, and the step that works on them.
struct Engine {
  /// As Model, with travelling shards written. Collective.
  Engine(Mesh mesh, ShardOptions options, std::vector<UnitPlan> plans,
         std::vector<ModelBuffer> buffers, const StorageFactory* factory)
      : model(std::move(mesh), std::move(options), std::move(plans), std::move(buffers), factory),
        step(model) {}

  Model model;
  Step step;
};

/// Writes a model's shards from outside its step: everything that initializes or loads a model
/// holds one. Values may be written between its construction, which waits until no rank reads this
/// rank's shards, and publish(). Without publish() they are torn; StateEntry::begin_writing() says
/// which. A model that was torn before is whole again once all its parameters have been written, by
/// one writer or by several in turn.
class ShardWriter {
 public:
  /// Throws Error(Usage), naming `operation`, inside a forward or a backward. Collective.
  ShardWriter(Step& step, const std::string& operation);
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  /// The next gather sees what StateEntry::finish_writing() has ended. Collective.
  void publish();

 private:
  Step& step_;
  std::optional<std::string> was_torn_by_;
};

/// While the returned object lives, what autograd saves on this thread belongs to `use` and goes to
/// the host (ShardOptions::offload). Such objects nest; the inner call's is its own. Of the root,
/// which runs first in backward and last in forward, and of what backward computes again, nothing
/// moves. Throws Error(Unavailable) if the process has another engine of autograd (Python's).
[[nodiscard]] std::shared_ptr<void> save_on_host(UnitUse& use);

// ---- How autograd reaches a sharded parameter, and what it is doing (autograd_hooks.cpp) ----

/// Gives each parameter of the unit a hook that moves accumulated gradients into the unit's reduce
/// buffer. `.grad` of the parameters throws Error(Usage) outside of backward from now on: code that
/// looks for gradients there (torch::optim, clip_grad_norm_, Module::zero_grad) would find none,
/// and silently do nothing.
void install_parameter_hooks(const ShardedUnit& unit);

/// Returns true if the parameter belongs to a sharded model, or did while that lived.
[[nodiscard]] bool is_sharded(const at::Tensor& parameter);

/// Returns true if a backward is running on this thread.
[[nodiscard]] bool inside_backward();

/// Returns true if the running backward accumulates a gradient into a parameter of the unit, or if
/// none is running: torch::autograd::grad, and a backward towards some tensors, need not. The same
/// on every rank.
[[nodiscard]] bool accumulates_gradients(const UnitState& unit);

/// Returns true if the running backward accumulates into everything that it reaches. What a
/// checkpointed unit recomputes is not in its graph, so nothing can ask for some of it.
[[nodiscard]] bool accumulates_everywhere();

}  // namespace sherd::detail
