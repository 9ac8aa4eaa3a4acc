#include "step/gradients.h"

#include <cmath>
#include <string>
#include <utility>

#include <ATen/ops/stack.h>

#include "base/own_work.h"
#include "sherd/error.h"

namespace sherd::detail {

Gradients::Gradients(Model& model) : model_(model) {
  set_divide_factor(model.mesh.world().size());
}

void Gradients::changed() {
  ++version_;
  used_parameters_.expect_changes();
}

void Gradients::forget() {
  ++version_;
  for (const SegmentOfUnit& of : model_.segments) {
    if (of.segment->gradients() != nullptr) {
      of.segment->gradients()->forget();
    }
  }
  pending_factor_ = 1.0;
}

void Gradients::set_divide_factor(double factor) {
  if (!(factor > 0) || !std::isfinite(factor)) {
    throw Error(ExitCode::Usage, "[set_gradient_divide_factor] the factor must be above 0, got " +
                                     std::to_string(factor) + ".");
  }
  scale_ = static_cast<float>(1.0 / factor);
}

void Gradients::apply_pending_factor() {
  const double factor = std::exchange(pending_factor_, 1.0);
  if (factor == 1.0) {
    return;
  }
  for (const SegmentOfUnit& of : model_.segments) {
    if (of.segment->has_gradient()) {
      of.segment->gradients()->scale(static_cast<float>(factor));
    }
  }
}

std::vector<double> Gradients::sums_of_squares() const {
  std::vector<at::Tensor> sums;
  for (const SegmentOfUnit& of : model_.segments) {
    if (of.segment->has_gradient()) {
      sums.push_back(
          model_.collectives.locally("sum of squares of gradients", of.unit->name(),
                                     [&] { return of.segment->gradients()->sum_of_squares(); }));
    }
  }
  if (sums.empty()) {
    return {};
  }
  const at::Tensor all = own_work([&] { return at::stack(sums).cpu(); });
  const auto* const values = all.const_data_ptr<double>();
  return {values, values + all.numel()};
}

void Gradients::check_reduced(const char* caller) const {
  for (const SegmentOfUnit& of : model_.segments) {
    const SegmentGradients* gradients = of.segment->gradients();
    if (gradients != nullptr &&
        (gradients->has_unsharded_sum() || gradients->awaits_all_reduce())) {
      throw Error(ExitCode::Usage,
                  std::string(caller) + ": gradients of unit '" + of.unit->name() +
                      "' have not been summed over all ranks: before the last micro-batch of a "
                      "step call set_requires_gradient_sync(true) and "
                      "set_requires_all_reduce(true).");
    }
  }
}

}  // namespace sherd::detail
