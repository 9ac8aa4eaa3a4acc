#pragma once
// One communication unit: its segments, and the way from sharded to gathered and back.

#include <memory>
#include <string>
#include <vector>

#include "flat_segment.h"
#include "sherd/options.h"

namespace sherd::detail {

class Runtime;
class UnitUse;

enum class StorageState { Sharded, Unsharded };
enum class TrainingState { Idle, Forward, PreBackward, PostBackward };

/// A parameter of a unit, once however many names it has.
struct UnitParameter {
  std::string name;                  ///< qualified, of its first owner
  std::vector<std::string> aliases;  ///< other names of the same tensor
  at::Tensor tensor;                 ///< the module's own
  c10::ScalarType original_dtype = c10::ScalarType::Float;
  bool trainable = true;
  bool has_values = false;  ///< false: built on meta and not loaded yet
  size_t segment = 0;
  size_t place = 0;
};

/// Options that hold for one unit.
struct UnitSettings {
  Precision precision;
  bool reshard_after_forward = true;
  bool checkpoint_activations = false;
};

/// What happens when a backward of the unit ends, until it is set otherwise. FSDP2's words.
struct BackwardSettings {
  bool requires_gradient_sync = true;
  bool requires_all_reduce = true;
  bool reshard_after_backward = true;
};

/// ≙ FSDPParamGroup. Methods that gather or reduce are collective; they are called in the same
/// order on all ranks because all ranks run the same model.
class UnitState {
 public:
  /// `level`: how many units it lies in; 0 for the root.
  UnitState(Runtime& runtime, int index, int level, std::string name, UnitSettings settings,
            std::vector<UnitParameter> parameters);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] bool is_root() const { return index_ == 0; }
  [[nodiscard]] int level() const { return level_; }
  [[nodiscard]] const UnitSettings& settings() const { return settings_; }
  [[nodiscard]] Runtime& runtime() { return runtime_; }
  [[nodiscard]] std::vector<UnitParameter>& parameters() { return parameters_; }
  [[nodiscard]] const std::vector<UnitParameter>& parameters() const { return parameters_; }
  [[nodiscard]] const std::vector<std::unique_ptr<FlatSegment>>& segments() const {
    return segments_;
  }
  [[nodiscard]] StorageState storage_state() const { return storage_; }
  [[nodiscard]] TrainingState training_state() const { return training_; }
  [[nodiscard]] bool in_forward() const { return forward_depth_ > 0; }
  [[nodiscard]] bool awaits_backward() const { return !uses_.empty(); }
  [[nodiscard]] size_t outstanding_uses() const { return uses_.size(); }
  /// Of the modules inside it, inner units' too.
  [[nodiscard]] const std::vector<at::Tensor>& buffers() const { return buffers_; }
  void set_buffers(std::vector<at::Tensor> buffers) { buffers_ = std::move(buffers); }
  /// Bytes of the whole unit when gathered.
  [[nodiscard]] int64_t gathered_bytes() const;
  /// What it is gathered in now: `param_dtype`, or fp32 in evaluation.
  [[nodiscard]] std::optional<c10::ScalarType> compute_dtype() const;
  BackwardSettings backward_settings;

  /// Copies values of parameters that have them into the shards and makes all of them views. Once.
  void take_over_parameters();

  /// Starts to gather, if that has not been done. `in_evaluation`: for a forward without gradients;
  /// a backward runs without them too, but needs what its forward saw.
  void unshard(bool in_evaluation = false);
  /// Waits for the gather; the parameters may be used.
  void wait_unshard();
  /// Frees the gathered parameters.
  void reshard();

  /// Left by an exception it has given up the forward again.
  void pre_forward();
  /// The forward has ended; `use`, where a backward of it will come.
  void post_forward(UnitUse* use);
  /// A forward has ended in an exception.
  void leave_forward();
  /// A gradient of a use has arrived.
  void pre_backward(UnitUse* use);
  /// One use's backward has ended: every gradient of its parameters has been written.
  void finish_use(UnitUse* use);
  /// The use will never run backward.
  void drop_use(const UnitUse* use);
  /// A new step: what was called before and got no backward is forgotten.
  void begin_iteration() { called_ = false; }
  /// What a backward leaves to do at its end: units without an input that requires gradients, sums
  /// of earlier micro-batches, parameters gathered ahead.
  void finish_backward();
  /// After an exception: back to sharded and idle. `in_backward`: gradients are forgotten as well.
  void abandon(bool in_backward);

  [[nodiscard]] at::Tensor gradient_slot(size_t parameter);
  [[nodiscard]] bool gradient_written(size_t parameter) const;
  void mark_gradient_written(size_t parameter);

 private:
  void gather_segments(bool full_precision);
  void reshard_after_forward();
  void reshard_after_backward();
  [[nodiscard]] bool is_in_backward() const;
  /// Reduces what has been written, and reshards.
  void post_backward();
  void reduce(SegmentGradients& gradients);
  [[nodiscard]] bool accumulates_unsharded() const;
  [[nodiscard]] bool is_trained(const FlatSegment& segment) const;
  void copy_values(const UnitParameter& parameter, const at::Tensor& values);
  void follow_segments();

  Runtime& runtime_;
  int index_;
  int level_;
  std::string name_;
  UnitSettings settings_;
  std::vector<UnitParameter> parameters_;
  std::vector<at::Tensor> buffers_;
  std::vector<std::unique_ptr<FlatSegment>> segments_;
  StorageState storage_ = StorageState::Sharded;
  bool full_precision_ = false;
  bool gather_pending_ = false;
  TrainingState training_ = TrainingState::Idle;
  int forward_depth_ = 0;
  std::vector<UnitUse*> uses_;  ///< calls whose backward is under way, or may still come
  bool called_ = false;         ///< with a backward to come, since it was reduced last
};

/// One call of a unit, held by its part of autograd's graph: when that is freed without a backward,
/// the unit stops waiting for it.
class UnitUse {
 public:
  UnitUse(std::shared_ptr<Runtime> runtime, UnitState& unit)
      : runtime_(std::move(runtime)), unit_(unit) {}
  ~UnitUse();
  UnitUse(const UnitUse&) = delete;
  UnitUse& operator=(const UnitUse&) = delete;
  [[nodiscard]] UnitState& unit() const { return unit_; }
  /// Whether its backward is under way, and needs the parameters.
  [[nodiscard]] bool in_backward() const { return in_backward_; }
  void set_in_backward(bool in_backward) { in_backward_ = in_backward; }

 private:
  std::shared_ptr<Runtime> runtime_;  ///< keeps the unit alive
  UnitState& unit_;
  bool in_backward_ = false;
};

}  // namespace sherd::detail
