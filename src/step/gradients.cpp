#include "step/gradients.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "comm/buffers.h"
#include "kernels/shard_math.h"
#include "sherd/error.h"
#include "storage/own_work.h"

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
  pending_factor_ = {};
}

void Gradients::set_divide_factor(double factor) {
  if (!(factor > 0) || !std::isfinite(factor)) {
    throw Error(ExitCode::Usage, "[set_gradient_divide_factor] the factor must be above 0, got " +
                                     std::to_string(factor) + ".");
  }
  scale_ = static_cast<float>(1.0 / factor);
}

at::Tensor PendingFactor::on(c10::Device device) const {
  if (!on_device.defined()) {
    return at::full({}, number, at::TensorOptions(at::kFloat).device(device));
  }
  return number == 1.0 ? on_device : at::mul(on_device, number);
}

void Gradients::apply_pending_factor() {
  const PendingFactor factor = std::exchange(pending_factor_, {});
  if (!factor.on_device.defined() && factor.number == 1.0) {
    return;
  }
  for (const SegmentOfUnit& of : model_.segments) {
    if (!of.segment->has_gradient()) {
      continue;
    }
    of.segment->await_update();  // which reads them
    if (factor.on_device.defined()) {
      own_work([&] { of.segment->gradients()->scale(factor.on(of.segment->layout().device)); });
    } else {
      of.segment->gradients()->scale(static_cast<float>(factor.number));
    }
  }
}

// Joined in the order of segments on the host, in one of its own on a device.
at::Tensor Gradients::over_segments(const char* what, const OfSegment& of_segment,
                                    ReduceOp op) const {
  std::vector<at::Tensor> each;
  for (const SegmentOfUnit& of : model_.segments) {
    if (of.segment->has_gradient()) {
      each.push_back(model_.collectives.locally(
          what, of.unit->name(), [&] { return of_segment(*of.segment->gradients()); }));
    }
  }
  const auto options = at::TensorOptions(at::kDouble).device(model_.mesh.world().device());
  if (each.empty()) {
    return at::zeros({}, options);
  }
  if (options.device().is_cpu()) {
    double joined = 0;
    for (const at::Tensor& one : each) {
      joined = join(joined, one.item<double>(), op);
    }
    return at::scalar_tensor(joined, options);
  }
  const at::Tensor all = at::stack(each);
  return op == ReduceOp::Sum ? all.sum() : all.amax();
}

at::Tensor Gradients::sum_of_squares() const {
  const auto of = [](const SegmentGradients& gradients) { return gradients.sum_of_squares(); };
  return own_work([&] { return over_segments("sum of squares of gradients", of, ReduceOp::Sum); });
}

at::Tensor Gradients::sum_of_powers(double p) const {
  const auto of = [p](const SegmentGradients& gradients) {
    const auto in_use = gradients.use();
    return shard_math::sum_of_powers(gradients.shard(), p);
  };
  const ReduceOp op = std::isinf(p) ? ReduceOp::Max : ReduceOp::Sum;
  return own_work([&] { return over_segments("gradient norm", of, op); });
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
