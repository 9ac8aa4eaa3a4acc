#pragma once
// Which parameters have got a gradient on any rank: the others are left alone by optimizers.

#include <functional>

#include "model/model.h"
#include "sherd/communicator.h"

namespace sherd::detail {

/// [Note: Parameters that no rank used]
/// A unit is reduced as a whole, with zeros for what a rank did not use, so that ranks that go
/// different ways through a model meet in the same collectives. A zero that no rank has written is
/// no gradient, though: moments and weight decay would move the parameter. So each rank remembers
/// what it has written since gradients were forgotten. Before an update the ranks compare how much
/// that leaves out: one number, which travels with the gradient norm where that is asked for. Only
/// if it is not zero do they exchange a flag for each parameter.
class UsedParameters {
 public:
  explicit UsedParameters(Model& model) : model_(model) {}

  /// A gradient has been reduced since the ranks agreed.
  void expect_changes() { agreed_ = false; }
  /// After that SegmentGradients::used() holds for all ranks. Collective.
  void agree();
  /// The same, beside an all-reduce of `value` over the shard group, whose result it returns.
  /// Collective.
  [[nodiscard]] double agree_beside(double value, ReduceOp op);

 private:
  using Visit = std::function<void(SegmentGradients& gradients, size_t place)>;
  void for_each_summed(const Visit& visit) const;
  [[nodiscard]] double count_unused() const;
  void exchange_flags();

  Model& model_;
  bool agreed_ = true;
};

}  // namespace sherd::detail
