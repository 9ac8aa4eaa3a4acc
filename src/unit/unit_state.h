#pragma once
// One communication unit: its parameters and segments, and the way from sharded to gathered and
// back. It knows nothing of the step that it takes part in.

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/options.h"
#include "sherd/world.h"
#include "storage/gather_arena.h"
#include "unit/collectives.h"
#include "unit/flat_segment.h"

namespace sherd::detail {

enum class StorageState { Sharded, Unsharded };

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
  uint32_t version = 0;  ///< LibTorch's count of writes, when the last forward began

  /// LibTorch's count of writes to the tensor.
  [[nodiscard]] uint32_t version_now() const {
    const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
    return counter.enabled() ? counter.current_version() : 0;  // not in inference mode
  }
};

/// Options that hold for one unit.
struct UnitSettings {
  Precision precision;
  bool reshard_after_forward = true;
  bool checkpoint_activations = false;
};

/// What happens when a backward of the unit ends, in FSDP2's terms.
struct BackwardSettings {
  bool requires_gradient_sync = true;
  bool requires_all_reduce = true;
  bool reshard_after_backward = true;
  bool unshard_in_backward = true;

  [[nodiscard]] bool sums_over_all_ranks() const {
    return requires_gradient_sync && requires_all_reduce;
  }
};

/// What fully_shard() has decided of a unit.
struct UnitPlan {
  std::string name;
  int level = 0;  ///< how many units it lies in; 0 for the root
  UnitSettings settings;
  std::vector<UnitParameter> parameters;
  std::vector<at::Tensor> buffers;  ///< of the modules inside it, inner units' too
};

/// The part of one parameter that this rank holds.
struct HeldPart {
  FlatSegment& segment;
  size_t place = 0;   ///< of the parameter in the segment
  Range range;        ///< elements of the flattened parameter; empty where none
  int64_t start = 0;  ///< of these elements in this rank's piece of the segment
  /// These elements of a tensor [shard_numel].
  [[nodiscard]] at::Tensor of(const at::Tensor& piece) const {
    return piece.narrow(0, start, range.size());
  }
  /// These elements of the values.
  [[nodiscard]] ShardValues values() const { return segment.values().narrow(start, range.size()); }
};

/// ≙ FSDPParamGroup without its step. Methods that gather are collective.
class UnitState {
 public:
  UnitState(int index, UnitPlan plan, const Mesh& mesh, Collectives& collectives,
            GatherArena& arena);

  [[nodiscard]] const std::string& name() const { return plan_.name; }
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] bool is_root() const { return index_ == 0; }
  [[nodiscard]] int level() const { return plan_.level; }
  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] const UnitSettings& settings() const { return plan_.settings; }
  [[nodiscard]] std::vector<UnitParameter>& parameters() { return plan_.parameters; }
  [[nodiscard]] const std::vector<UnitParameter>& parameters() const { return plan_.parameters; }
  /// The parameter at a place of one of its segments.
  [[nodiscard]] const UnitParameter& parameter_at(const FlatSegment& segment, size_t place) const {
    return plan_.parameters[static_cast<size_t>(segment.layout().places[place].parameter)];
  }
  [[nodiscard]] const std::vector<std::unique_ptr<FlatSegment>>& segments() const {
    return segments_;
  }
  [[nodiscard]] const std::vector<at::Tensor>& buffers() const { return plan_.buffers; }
  [[nodiscard]] HeldPart held_part(const UnitParameter& parameter) const;
  BackwardSettings backward_settings;
  void set_reshard_after_forward(bool reshard) { plan_.settings.reshard_after_forward = reshard; }

  /// Copies the values of parameters that have any into the shards and makes all parameters views.
  /// Called once.
  void take_over_parameters();

  [[nodiscard]] StorageState storage_state() const { return storage_; }
  /// Bytes of the whole unit when gathered.
  [[nodiscard]] int64_t gathered_bytes() const;
  /// Whether it is, or was last, gathered in fp32 for evaluation.
  [[nodiscard]] bool in_full_precision() const { return full_precision_; }
  /// What it is gathered in now: `param_dtype`, or fp32 in evaluation.
  [[nodiscard]] std::optional<c10::ScalarType> compute_dtype() const;
  /// Starts to gather, if that has not been done. `in_evaluation`: for a forward without gradients;
  /// a backward runs without them too, but needs what its forward saw.
  void unshard(bool in_evaluation = false);
  /// Waits for the gather; the parameters may be used.
  void wait_unshard();
  /// Frees the gathered parameters.
  void reshard();

  // The gradient of a parameter during backward, in the unit's reduce buffer.

  [[nodiscard]] bool gradient_written(size_t parameter) const;
  /// What the gradient is to be written to, before end_gradient_write(): its place there or, where
  /// another use of the parameter has written that, a temporary.
  [[nodiscard]] at::Tensor begin_gradient_write(size_t parameter);
  void end_gradient_write(size_t parameter, const at::Tensor& written);
  /// Its place, to be added to: holds zeros, or what other uses of the parameter wrote.
  [[nodiscard]] at::Tensor begin_gradient_add(size_t parameter);
  /// Whether a backward reduces the segment: on every rank alike.
  [[nodiscard]] bool is_trained(const FlatSegment& segment) const;

 private:
  void point_parameters();
  [[noreturn]] void give_up(const std::exception_ptr& failure);
  [[nodiscard]] SegmentGradients& gradients_of(size_t parameter) const;
  [[nodiscard]] at::Tensor gradient_place(size_t parameter);

  int index_;
  UnitPlan plan_;
  int shard_rank_;
  c10::Device device_;
  Collectives& collectives_;
  GatherArena& arena_;
  std::vector<std::unique_ptr<FlatSegment>> segments_;
  StorageState storage_ = StorageState::Sharded;
  bool full_precision_ = false;
  bool gather_pending_ = false;
};

/// A segment and the unit it is of.
struct SegmentOfUnit {
  UnitState* unit = nullptr;
  FlatSegment* segment = nullptr;
};

}  // namespace sherd::detail
