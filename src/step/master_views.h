#pragma once
// Master shards that an optimizer of LibTorch updates.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include "unit/model.h"

namespace sherd::detail {

/// Leaf views of the master shards, one for each trainable parameter, for optimizers of LibTorch.
/// When they may be written: [Note: Masters that others write] in step.h.
class MasterViews {
 public:
  void make(const Model& model);
  [[nodiscard]] bool handed_out() const { return !views_.empty(); }
  [[nodiscard]] torch::OrderedDict<std::string, at::Tensor> by_name() const;

  // These do nothing before views have been made.

  /// Before a backward: forgets the gradients of views whose `.grad` has been reset, and takes
  /// those that have been replaced.
  void take_gradient_changes();
  /// After a backward: points each `.grad` at the gradient shard; a parameter that no rank used
  /// has none.
  void show_gradients();
  void forget_gradients();

 private:
  struct View {
    const UnitParameter& parameter;
    HeldPart held;
    at::Tensor tensor;  ///< [n], a leaf that requires gradients
  };
  [[nodiscard]] static at::Tensor gradient_of(const View& view);

  std::vector<View> views_;
};

}  // namespace sherd::detail
