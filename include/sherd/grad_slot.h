#pragma once
// Where an operator writes a weight's gradient: straight into the unit's reduce buffer.

#include <utility>

#include <ATen/core/Tensor.h>

namespace sherd {

namespace detail {
class UnitState;
}

/// The place of one sharded parameter's gradient in its unit's reduce buffer, in the dtype in which
/// the parameter is gathered and the parameter's shape.
///
/// An operator's backward asks for it, writes, and returns an undefined gradient for the weight, so
/// that nothing is copied and no dense gradient is ever held beside the buffer:
///
///     if (auto slot = sherd::GradSlot::of(weight)) {
///       slot.write([&](at::Tensor& out) { at::mm_out(out, grad_output.t(), input); });
///     } else {
///       grad_weight = grad_output.t().mm(input);
///     }
///
/// Not collective. Valid during the backward in which it was asked for; to be used on the thread
/// that runs it. The operator must take `weight` as an input that autograd sees, so that
/// the unit knows of the use. PyTorch: none (FSDP2 copies gradients into the reduce-scatter
/// input).
class GradSlot {
 public:
  /// The slot of `parameter`, or an empty one where there is none: a parameter that is not sharded,
  /// or is frozen, or that this backward is not for (torch::autograd::grad towards other tensors).
  [[nodiscard]] static GradSlot of(const at::Tensor& parameter);

  /// Whether there is a slot. Without one the operator returns the weight's gradient as usual.
  [[nodiscard]] explicit operator bool() const noexcept { return unit_ != nullptr; }

  /// Calls `compute(out)` with a tensor of the parameter's shape and dtype which it must fill. A
  /// slot that another use of the weight has written already is added to, never overwritten:
  /// `compute` then fills a temporary. Not on an empty slot. May wait for an earlier reduction:
  /// throws Error (PeerLost, Hang, OutOfMemory).
  template <class Compute>
  void write(Compute&& compute) const {
    at::Tensor target = begin_write();
    std::forward<Compute>(compute)(target);
    end_write(target);
  }

  /// Calls `compute(out)` with the slot itself, which it must add to: it holds zeros, or what other
  /// uses of the weight wrote. For gradients that touch few of the weight's elements. Not on an
  /// empty slot. Waits and throws as write().
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
