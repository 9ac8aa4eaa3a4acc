#pragma once
// The gradients of a model from the backward that sums them to the update that uses them up.

#include <cstdint>
#include <functional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "step/used_parameters.h"
#include "unit/model.h"

namespace sherd::detail {

/// What gradients have not been multiplied by yet: a number, and one on their device that the host
/// has not waited for.
struct PendingFactor {
  double number = 1.0;
  at::Tensor on_device = {};  ///< fp32 []; undefined: none

  /// Both as one: fp32 [] on `device`.
  [[nodiscard]] at::Tensor on(c10::Device device) const;
};

class Gradients {
 public:
  explicit Gradients(Model& model);

  /// Some have been reduced or accumulated.
  void changed();
  /// The next backward writes instead of adding.
  void forget();
  /// How often they have changed, or been forgotten.
  [[nodiscard]] int64_t version() const { return version_; }

  /// Throws Error(Usage) for what is not above 0.
  void set_divide_factor(double factor);
  /// What each rank's gradients are multiplied by when they are reduced.
  [[nodiscard]] float scale() const { return scale_; }

  /// The fused optimizer applies it in its own pass, so that clipping and unscaling cost none.
  [[nodiscard]] const PendingFactor& pending_factor() const { return pending_factor_; }
  void set_pending_factor(PendingFactor factor) { pending_factor_ = std::move(factor); }
  /// Multiplies them now, for readers other than the fused optimizer.
  void apply_pending_factor();

  /// Of all segments that have a gradient: double [] on the model's device, not waited for.
  [[nodiscard]] at::Tensor sum_of_squares() const;
  /// The same of |x|^p for any p, or the largest |x| where p is infinity.
  [[nodiscard]] at::Tensor sum_of_powers(double p) const;

  /// Throws where micro-batches have left gradients that are not sums over all ranks yet.
  void check_reduced(const char* caller) const;
  [[nodiscard]] UsedParameters& used_parameters() { return used_parameters_; }

 private:
  using OfSegment = std::function<at::Tensor(const SegmentGradients& gradients)>;
  [[nodiscard]] at::Tensor over_segments(const char* what, const OfSegment& of, ReduceOp op) const;

  Model& model_;
  UsedParameters used_parameters_{model_};
  int64_t version_ = 0;
  float scale_ = 1.0F;
  PendingFactor pending_factor_;
};

}  // namespace sherd::detail
