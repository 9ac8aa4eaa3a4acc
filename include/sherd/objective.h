#pragma once
// A training loss of the log-likelihoods that a model gives to whole examples.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace sherd {

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
