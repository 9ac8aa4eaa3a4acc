#include "step/master_views.h"

#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "storage/movable_storage.h"

namespace sherd::detail {

namespace {

// Not one of autograd's views, which LibTorch's optimizers could not detach in place.
at::Tensor part_of(const at::Tensor& flat, int64_t start, int64_t numel) {
  return flat_tensor(flat.mutable_data_ptr<float>() + start, numel, at::kFloat, flat.device());
}

}  // namespace

void MasterViews::make(const Model& model) {
  for_each_held_part(
      model, [&](const UnitState&, const UnitParameter& parameter, const HeldPart& held) {
        if (held.segment.layout().trainable) {
          at::Tensor view = part_of(held.segment.master(), held.start, held.range.size());
          view.set_requires_grad(true);
          views_.push_back({parameter, held, std::move(view)});
        }
      });
}

torch::OrderedDict<std::string, at::Tensor> MasterViews::by_name() const {
  torch::OrderedDict<std::string, at::Tensor> views;
  for (const View& view : views_) {
    views.insert(view.parameter.name, view.tensor);
  }
  return views;
}

at::Tensor MasterViews::gradient_of(const View& view) {
  return part_of(view.held.segment.gradient(), view.held.start, view.tensor.numel());
}

void MasterViews::take_gradient_changes() {
  const at::NoGradGuard no_grad;
  std::map<FlatSegment*, bool> kept;  // whether any view of the segment still has a gradient
  for (const View& view : views_) {
    bool& is_kept = kept[&view.held.segment];
    is_kept = is_kept || view.tensor.grad().defined();
  }
  for (const View& view : views_) {
    FlatSegment& segment = view.held.segment;
    if (!segment.has_gradient()) {
      continue;
    }
    if (view.tensor.grad().defined()) {
      at::Tensor sum = gradient_of(view);
      if (sum.data_ptr() != view.tensor.grad().data_ptr()) {
        sum.copy_(view.tensor.grad());
      }
    } else if (kept[&segment]) {
      segment.gradients()->forget(view.held.place, view.held.start, view.tensor.numel());
    } else {
      segment.gradients()->forget();
    }
  }
}

void MasterViews::show_gradients() {
  for (const View& view : views_) {
    SegmentGradients* const gradients = view.held.segment.gradients();
    if (gradients->has_sum() && view.parameter.tensor.requires_grad() &&
        gradients->used(view.held.place)) {
      gradients->expose();
      view.tensor.mutable_grad() = gradient_of(view);
    }
  }
}

void MasterViews::forget_gradients() {
  for (const View& view : views_) {
    view.tensor.mutable_grad().reset();
  }
}

}  // namespace sherd::detail
