#include "optim/optim_views.h"

#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "between_steps.h"
#include "movable_storage.h"
#include "runtime.h"
#include "sherd/optim.h"

namespace sherd::detail {

namespace {

// Not a view as autograd knows them: LibTorch's optimizers detach gradients in place.
at::Tensor part_of(const at::Tensor& flat, int64_t start, int64_t numel) {
  return flat_tensor(flat.mutable_data_ptr<float>() + start, numel, at::kFloat, flat.device());
}

}  // namespace

void OptimViews::make_views() {
  const int rank = runtime_.mesh().shard_rank();
  for (const auto& unit : runtime_.units()) {
    for (UnitParameter& parameter : unit->parameters()) {
      FlatSegment& segment = *unit->segments()[parameter.segment];
      const SegmentLayout& layout = segment.layout();
      if (!layout.trainable) {
        continue;
      }
      const ParameterPlace& place = layout.places[parameter.place];
      const Range held = layout.held_by(place, rank);
      const int64_t start = layout.start_in_piece(place, rank);
      at::Tensor view = part_of(segment.master(), start, held.size());
      view.set_requires_grad(true);
      views_.push_back(
          {parameter.name, std::move(view), &segment, parameter.place, start, &parameter.tensor});
    }
  }
}

torch::OrderedDict<std::string, at::Tensor> OptimViews::hand_out() {
  if (views_.empty()) {
    make_views();
    open_update_window();
    runtime_.apply_gradient_factor();  // what was clipped is shown
    show_gradients();
  }
  torch::OrderedDict<std::string, at::Tensor> named;
  for (const View& view : views_) {
    named.insert(view.name, view.tensor);
  }
  return named;
}

void OptimViews::open_update_window() {
  if (handed_out() && !window_is_open_) {
    await_readers(runtime_);
    window_is_open_ = true;
  }
}

void OptimViews::close_update_window() {
  if (std::exchange(window_is_open_, false)) {
    runtime_.publish();
  }
}

void OptimViews::expect_update() {
  window_is_open_ = handed_out();
}

at::Tensor OptimViews::gradient_of(const View& view) {
  return part_of(view.segment->gradient(), view.start, view.tensor.numel());
}

void OptimViews::take_gradient_changes() {
  const at::NoGradGuard no_grad;
  std::map<FlatSegment*, bool> kept;  // whether any view of the segment has its gradient still
  for (const View& view : views_) {
    kept[view.segment] = kept[view.segment] || view.tensor.grad().defined();
  }
  for (const View& view : views_) {
    if (!view.segment->has_gradient()) {
      continue;
    }
    if (view.tensor.grad().defined()) {
      at::Tensor sum = gradient_of(view);
      if (sum.data_ptr() != view.tensor.grad().data_ptr()) {
        sum.copy_(view.tensor.grad());
      }
    } else if (kept[view.segment]) {
      view.segment->gradients()->forget(view.place, view.start, view.tensor.numel());
    } else {
      view.segment->gradients()->forget();
    }
  }
}

void OptimViews::show_gradients() {
  if (handed_out()) {
    runtime_.used_parameters().agree();
  }
  for (const View& view : views_) {
    const bool shown = view.segment->has_gradient() && view.parameter->requires_grad() &&
                       view.segment->gradients()->used(view.place);
    if (shown) {
      view.segment->gradients()->show();
      view.tensor.mutable_grad() = gradient_of(view);
    }
  }
}

void OptimViews::forget_gradients() {
  for (const View& view : views_) {
    view.tensor.mutable_grad().reset();
  }
}

}  // namespace sherd::detail

namespace sherd {

torch::OrderedDict<std::string, at::Tensor> optim_parameters(ShardedModule& model) {
  detail::require_between_steps(model.runtime(), "optim_parameters");
  return model.runtime().optim_views().hand_out();
}

}  // namespace sherd
