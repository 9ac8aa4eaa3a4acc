#pragma once
// The gradients of a model from the backward that sums them to the update that uses them up.

#include <cstdint>
#include <vector>

#include "model/model.h"
#include "step/used_parameters.h"

namespace sherd::detail {

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

  /// A factor that gradients have not been multiplied by yet: the fused optimizer applies it in its
  /// own pass, so that clipping and unscaling cost none.
  [[nodiscard]] double pending_factor() const { return pending_factor_; }
  void set_pending_factor(double factor) { pending_factor_ = factor; }
  /// Multiplies them now, for readers other than the fused optimizer.
  void apply_pending_factor();

  /// Of each segment that has a gradient; waits for a device once, not for each of them.
  [[nodiscard]] std::vector<double> sums_of_squares() const;

  /// Throws where micro-batches have left gradients that are not sums over all ranks yet.
  void check_reduced(const char* caller) const;
  [[nodiscard]] UsedParameters& used_parameters() { return used_parameters_; }

 private:
  Model& model_;
  UsedParameters used_parameters_{model_};
  int64_t version_ = 0;
  float scale_ = 1.0F;
  double pending_factor_ = 1.0;
};

}  // namespace sherd::detail
