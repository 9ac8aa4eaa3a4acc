#pragma once
// The gradients of a model from the backward that sums them to the update that uses them up.

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "sherd/communicator.h"
#include "unit/model.h"

namespace sherd::detail {

/// A factor that gradients have not been multiplied by yet: a number, and one on their device that
/// the host has not waited for.
struct PendingFactor {
  double number = 1.0;
  at::Tensor on_device = {};  ///< fp32 []; undefined: none

  /// Both as one: fp32 [] on `device`.
  [[nodiscard]] at::Tensor on(c10::Device device) const;
};

/// [Note: Parameters that no rank used]
/// A unit is reduced as a whole, with zeros for parameters that a rank did not use: ranks that take
/// different paths through a model meet in the same collectives. A zero that no rank has written is
/// no gradient, though: moments and weight decay would move the parameter. So each rank remembers
/// which parameters it has written since gradients were forgotten. Before an update the ranks add
/// up how many it did not: one number, which travels with the gradient norm if there is one. Only
/// if it is not zero do they exchange a flag per parameter. On a device the norm is reduced there,
/// and nobody waits for it. The host must know the number, so it then goes by the world's own
/// exchange between hosts, together with a check that the ranks are in step.
class Gradients {
 public:
  explicit Gradients(Model& model);

  // ---- In backward, where reductions overlap with what computes gradients ----

  /// [Note: Running reductions]
  /// Each segment is followed from its reduction over the shard group to the sum over all ranks,
  /// which starts when the reduction has ended. Reductions end in the order in which they began, so
  /// every rank starts the same sums at the same point of the program.
  ///
  /// Reduces a trained segment of the unit, also if nothing was written; or adds it to its
  /// unsharded sum. Collective.
  void reduce(UnitState& unit, SegmentGradients& gradients);
  /// Returns true if backward adds up gradients of the unit without communication.
  [[nodiscard]] bool accumulates_unsharded(const UnitState& unit) const;
  /// Waits for all reductions, and sums what only earlier micro-batches wrote. Collective.
  void finish_reductions();
  void abandon_reductions();
  /// From now on unsharded sums keep their memory after a step: captured graphs hold its address.
  void keep_unsharded_sums() { keeps_unsharded_sums_ = true; }

  using WhenSummed = std::function<void(SegmentGradients&)>;
  /// Sets what is called with each segment's sum at once: an optimizer that works in backward.
  void set_when_summed(WhenSummed when_summed) { when_summed_ = std::move(when_summed); }
  [[nodiscard]] bool optimized_in_backward() const { return static_cast<bool>(when_summed_); }
  /// Throws Error(Usage), naming `caller`, if such an optimizer uses them up.
  void check_kept(const char* caller) const;

  // ---- Until the update ----

  /// Notes that some have been reduced or accumulated.
  void changed() {
    ++version_;
    use_is_agreed_ = false;
  }
  /// The next backward writes instead of adding.
  void forget();
  /// Number of times that they have changed or been forgotten.
  [[nodiscard]] int64_t version() const { return version_; }

  /// Throws Error(Usage) unless the factor is above 0.
  void set_divide_factor(double factor);
  /// Returns the factor that each rank's gradients are multiplied by when they are reduced.
  [[nodiscard]] float scale() const { return scale_; }

  /// The fused optimizer applies it in its own pass, so that clipping and unscaling cost none.
  [[nodiscard]] const PendingFactor& pending_factor() const { return pending_factor_; }
  void set_pending_factor(PendingFactor factor) { pending_factor_ = std::move(factor); }
  /// Multiplies them now, for readers other than the fused optimizer.
  void apply_pending_factor();

  /// Of all segments that have a gradient: double [] on the model's device, not waited for.
  [[nodiscard]] at::Tensor sum_of_squares() const;
  /// The same of |x|^p for any p, or the largest |x| if p is infinity.
  [[nodiscard]] at::Tensor sum_of_powers(double p) const;

  /// Throws Error(Usage) if micro-batches have left gradients that are not sums over all ranks yet.
  void check_reduced(const char* caller) const;

  /// Agrees on which parameters got a gradient on any rank: SegmentGradients::used() holds for all
  /// ranks afterwards. Optimizers leave the others alone. Collective.
  void agree_on_use();
  /// The same, together with an all-reduce over the shard group of `value`, double [] on the
  /// model's device, whose result it returns. Collective.
  [[nodiscard]] at::Tensor agree_on_use_with(const at::Tensor& value, ReduceOp op);

 private:
  void take_ended();
  void start_all_reduce(SegmentGradients& gradients);
  void finish_all_reduces();
  void finish_sum(SegmentGradients& gradients) const;

  using OfSegment = std::function<at::Tensor(const SegmentGradients& gradients)>;
  [[nodiscard]] at::Tensor over_segments(const char* what, const OfSegment& of, ReduceOp op) const;

  [[nodiscard]] double agree_on_cpu(double value, ReduceOp op);
  void agree_between_hosts();
  /// `own`: signatures of this rank's communicators, which differ from another's. Collective.
  [[noreturn]] void throw_out_of_step(const std::vector<double>& own) const;
  /// Gradients of parameters that have a sum, with the place in their segment.
  using Summed = std::vector<std::pair<SegmentGradients*, size_t>>;
  [[nodiscard]] Summed summed() const;
  [[nodiscard]] double count_unused() const;
  using Reduce = std::function<void(std::span<double> flags)>;
  /// `unused`: how many some rank did not use, the same number on every rank. Unless it is 0, ranks
  /// exchange a flag per parameter.
  void finish_agreement(double unused, const Reduce& reduce);

  Model& model_;
  struct Reducing {
    SegmentGradients* gradients = nullptr;
    bool all_reduce = false;  ///< the sum over the replicas follows
  };
  std::deque<Reducing> reducing_;
  std::vector<SegmentGradients*> all_reducing_;
  WhenSummed when_summed_;
  bool keeps_unsharded_sums_ = false;
  bool use_is_agreed_ = true;
  int64_t version_ = 0;
  float scale_ = 1.0F;
  PendingFactor pending_factor_;
};

}  // namespace sherd::detail
