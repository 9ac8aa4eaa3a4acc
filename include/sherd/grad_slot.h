#pragma once
// Lets an operator write a weight's gradient straight into the unit's reduce buffer.

#include <utility>

#include <ATen/core/Tensor.h>

namespace sherd {

namespace detail {
class UnitState;
}

/// The range of one parameter's gradient in its unit's reduce buffer. It has the parameter's shape
/// and the dtype of the gathered parameter.
///
/// An operator's backward requests the slot, writes to it, and returns an undefined gradient for
/// the weight. Nothing is copied, and no second dense gradient exists:
///
///     if (auto slot = sherd::GradSlot::of(weight)) {
///       slot.write([&](at::Tensor& out) { at::mm_out(out, grad_output.t(), input); });
///     } else {
///       grad_weight = grad_output.t().mm(input);
///     }
///
/// Not collective. Valid during the backward that requested it, on the thread that runs it. The
/// operator must take `weight` as an input that autograd sees, so that the unit knows of the use.
/// PyTorch: none (FSDP2 copies gradients into the reduce-scatter input).
class GradSlot {
 public:
  /// Returns the slot of `parameter`. Returns an empty slot if the parameter is not sharded, is
  /// frozen, or is not a target of this backward (torch::autograd::grad towards other tensors).
  [[nodiscard]] static GradSlot of(const at::Tensor& parameter);

  /// Returns true if the slot is not empty. Without a slot the operator returns the weight's
  /// gradient as usual.
  [[nodiscard]] explicit operator bool() const noexcept { return unit_ != nullptr; }

  /// Calls `compute(out)`, which must fill `out`, a tensor of the parameter's shape and dtype. If
  /// another use of the weight has written the slot already, `compute` fills a temporary, which is
  /// then added. Must not be called on an empty slot. May block on an earlier reduction: throws
  /// Error (PeerLost, Hang, OutOfMemory).
  template <class Compute>
  void write(Compute&& compute) const {
    at::Tensor target = begin_write();
    std::forward<Compute>(compute)(target);
    end_write(target);
  }

  /// Calls `compute(out)` with the slot itself, to which it must add. The slot holds zeros, or the
  /// gradients of other uses of the weight. For gradients that touch few of the weight's elements.
  /// Must not be called on an empty slot. Blocks and throws as write() does.
  template <class Compute>
  void add(Compute&& compute) const {
    at::Tensor target = begin_add();
    std::forward<Compute>(compute)(target);
  }

 private:
  GradSlot(detail::UnitState* unit, int64_t parameter) : unit_(unit), parameter_(parameter) {}
  [[nodiscard]] at::Tensor begin_write() const;
  void end_write(const at::Tensor& target) const;
  [[nodiscard]] at::Tensor begin_add() const;

  detail::UnitState* unit_ = nullptr;
  int64_t parameter_ = 0;
};

}  // namespace sherd
