#pragma once
// For your own operators and losses. GradSlot lets an operator write a weight's gradient straight
// into the unit's reduce buffer; an Objective is a loss of the log-likelihoods of whole examples.

#include <string>
#include <utility>
#include <vector>

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

/// The log-likelihoods of the examples of a micro-batch, in their order. Examples that belong to
/// one sample follow one another: of preference pairs, 2i is chosen and 2i + 1 rejected.
struct Likelihoods {
  at::Tensor logps_N;   ///< fp64 [N]: sum of log p over the predicted tokens of an example
  at::Tensor tokens_N;  ///< fp64 [N]: how many tokens that are
  /// As `logps_N`, of a model that is not trained. Undefined unless needs_reference().
  at::Tensor reference_logps_N;
};

/// What an objective makes of a micro-batch. All tensors are on the device of the likelihoods.
struct ObjectiveTerms {
  at::Tensor loss_sum;        ///< fp64 []: sum of the losses of the samples
  at::Tensor coefficients_N;  ///< fp64 [N]: ∂loss_sum/∂logps_N
  at::Tensor figures_F;       ///< fp64 [F]: sums over the samples, as figure_names() names them
};

/// A loss that depends on a model only through the log-likelihoods of whole examples: DPO, IPO,
/// SimPO, KTO and their like. The loss of a step is the mean over the samples of all ranks and
/// micro-batches, so terms() returns sums and never divides by the number of samples. Training
/// computes one forward, the likelihoods without gradients, the terms, and the gradient of
/// Σ coefficients_N · logps_N, so that no logits are kept.
/// terms() is called on every rank for its own micro-batch, on the thread that trains: it must not
/// contain a collective, and on a GPU it should not wait for the device.
class Objective {
 public:
  Objective() = default;
  Objective(const Objective&) = delete;
  Objective& operator=(const Objective&) = delete;
  virtual ~Objective() = default;

  /// How many examples a sample has: 2 for pairs.
  [[nodiscard]] virtual int64_t examples_per_sample() const = 0;
  /// True if terms() reads `reference_logps_N`.
  [[nodiscard]] virtual bool needs_reference() const = 0;
  /// Names of the figures that are logged as means over the samples of a step.
  [[nodiscard]] virtual std::vector<std::string> figure_names() const { return {}; }
  /// Of at least one sample. Gradients are off while it runs.
  [[nodiscard]] virtual ObjectiveTerms terms(const Likelihoods& likelihoods) const = 0;
};

}  // namespace sherd
