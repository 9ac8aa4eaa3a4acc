#pragma once
// Which parameters have got a gradient on any rank: the others are left alone by optimizers.

#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/communicator.h"
#include "unit/model.h"

namespace sherd::detail {

/// [Note: Parameters that no rank used]
/// A unit is reduced as a whole, with zeros for what a rank did not use, so that ranks that go
/// different ways through a model meet in the same collectives. A zero that no rank has written is
/// no gradient, though: moments and weight decay would move the parameter. So each rank remembers
/// what it has written since gradients were forgotten. Before an update the ranks compare how much
/// that leaves out: one number, which travels with the gradient norm where that is asked for. Only
/// if it is not zero do they exchange a flag for each parameter. The norm of gradients on a device
/// is reduced there, and nobody waits for it; the number, which the host must know, then goes by
/// the world's own exchange between hosts, and with it whether the ranks are in step.
class UsedParameters {
 public:
  explicit UsedParameters(Model& model) : model_(model) {}

  /// A gradient has been reduced since the ranks agreed.
  void expect_changes() { agreed_ = false; }
  /// After that SegmentGradients::used() holds for all ranks. Collective.
  void agree();
  /// The same, beside an all-reduce over the shard group of `value`, double [] on the model's
  /// device, whose result it returns. Collective.
  [[nodiscard]] at::Tensor agree_beside(const at::Tensor& value, ReduceOp op);

 private:
  [[nodiscard]] double agree_on_cpu(double value, ReduceOp op);
  void agree_between_hosts();
  /// `own`: signatures of this rank's communicators, which differ from another's. Collective.
  [[noreturn]] void tell_who_is_out_of_step(const std::vector<double>& own) const;
  using Visit = std::function<void(SegmentGradients& gradients, size_t place)>;
  void for_each_summed(const Visit& visit) const;
  [[nodiscard]] double count_unused() const;
  using Reduce = std::function<void(std::span<double> flags)>;
  void exchange_flags(const Reduce& reduce);

  Model& model_;
  bool agreed_ = true;
};

}  // namespace sherd::detail
