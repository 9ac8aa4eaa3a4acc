#pragma once
// One communication unit: its segments, and the way from sharded to gathered and back.

#include <memory>
#include <string>
#include <vector>

#include "flat_segment.h"

namespace sherd::detail {

class Runtime;

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

/// ≙ FSDPParamGroup. Methods that gather or reduce are collective; they are called in the same
/// order on all ranks because all ranks run the same model.
class UnitState {
 public:
  /// `level`: how many units it lies in; 0 for the root.
  UnitState(Runtime& runtime, int index, int level, std::string name,
            std::vector<UnitParameter> parameters);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] bool is_root() const { return index_ == 0; }
  [[nodiscard]] int level() const { return level_; }
  [[nodiscard]] Runtime& runtime() { return runtime_; }
  [[nodiscard]] std::vector<UnitParameter>& parameters() { return parameters_; }
  [[nodiscard]] std::vector<std::unique_ptr<FlatSegment>>& segments() { return segments_; }
  [[nodiscard]] StorageState storage_state() const { return storage_; }
  [[nodiscard]] TrainingState training_state() const { return training_; }
  [[nodiscard]] bool in_forward() const { return forward_depth_ > 0; }
  [[nodiscard]] bool awaits_backward() const { return uses_ > 0; }
  /// Bytes of the whole unit when gathered.
  [[nodiscard]] int64_t gathered_bytes() const;

  /// Copies values of parameters that have them into the shards and makes all of them views. Once.
  void take_over_parameters();

  /// Starts to gather, if that has not been done.
  void unshard();
  /// Waits for the gather; the parameters may be used.
  void wait_unshard();
  /// Frees the gathered parameters.
  void reshard();

  void pre_forward();
  /// `outputs_need_backward`: a backward of this use will come.
  void post_forward(bool outputs_need_backward);
  void pre_backward();
  /// One use's backward has ended: every gradient of its parameters has been written.
  void finish_use();
  /// Reduces what has been written and reshards. Called by the last use, or at the end of the
  /// backward.
  void post_backward();
  /// True where a backward left something to do.
  [[nodiscard]] bool needs_post_backward() const;
  /// After an exception: back to sharded and idle.
  void abandon();

  [[nodiscard]] at::Tensor gradient_slot(size_t parameter);
  [[nodiscard]] bool gradient_written(size_t parameter) const;
  void mark_gradient_written(size_t parameter);

 private:
  [[nodiscard]] bool is_trained(const FlatSegment& segment) const;
  void copy_values(const UnitParameter& parameter, const at::Tensor& values);

  Runtime& runtime_;
  int index_;
  int level_;
  std::string name_;
  std::vector<UnitParameter> parameters_;
  std::vector<std::unique_ptr<FlatSegment>> segments_;
  StorageState storage_ = StorageState::Sharded;
  bool gather_pending_ = false;
  TrainingState training_ = TrainingState::Idle;
  int forward_depth_ = 0;
  int uses_ = 0;
};

}  // namespace sherd::detail
