// Master shards that optimizers of LibTorch update: [Note: Masters that others write] in step.h.

#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "sherd/error.h"
#include "step/step.h"
#include "storage/movable_storage.h"

namespace sherd::detail {

namespace {

// Optimizers of LibTorch need masters and gradients that are fp32 tensors in memory.
void check_fp32(const Model& model) {
  if (model.offload->any()) {
    const bool is_on_disk = !model.offload->files().empty();
    throw Error(ExitCode::Usage,
                std::string("[optim_parameters] a part of the model is stored on ") +
                    (is_on_disk ? "a disk" : "the host") +
                    " (ShardOptions::offload), where optimizers of LibTorch do not find it: use "
                    "sherd::AdamW, or leave " +
                    (is_on_disk ? "the folders empty, and " : "") +
                    "optimizer_on_host, gradients_on_host and parameters_on_host.");
  }
  for (const SegmentOfUnit& of : model.segments) {
    const Master master = of.segment->master_format();
    const bool is_narrow = of.segment->layout().reduce_dtype != c10::kFloat;
    if (master != Master::Float32 || is_narrow) {
      throw Error(ExitCode::Usage,
                  "[optim_parameters] unit '" + of.unit->name() + "' has " +
                      (is_narrow ? "gradients in BFloat16 (Precision::reduce_dtype)"
                                 : std::string("masters in the format ") + name_of(master) +
                                       " (Precision::master)") +
                      ", and optimizers of LibTorch need fp32 tensors: use sherd::AdamW, or " +
                      (is_narrow ? "reduce_dtype Float." : "Master::Float32."));
    }
  }
}

// Not one of autograd's views, which LibTorch's optimizers could not detach in place.
at::Tensor part_of(const at::Tensor& flat, const HeldPart& held) {
  return flat_tensor(flat.mutable_data_ptr<float>() + held.start, held.range.size(), at::kFloat,
                     flat.device());
}

}  // namespace

torch::OrderedDict<std::string, at::Tensor> Step::hand_out_masters() {
  if (!masters_handed_out()) {
    check_fp32(model_);
    for_each_held_part(model_,
                       [&](const UnitState&, const UnitParameter& parameter, const HeldPart& held) {
                         if (held.segment.layout().trainable) {
                           at::Tensor view = part_of(held.segment.master(), held);
                           view.set_requires_grad(true);
                           master_views_.push_back({parameter, held, std::move(view)});
                         }
                       });
    open_update_window();
    gradients_.apply_pending_factor();  // views show clipped gradients
    show_gradients();
  }
  torch::OrderedDict<std::string, at::Tensor> views;
  for (const MasterView& view : master_views_) {
    views.insert(view.parameter.name, view.tensor);
  }
  return views;
}

void Step::take_gradient_changes() {
  const at::NoGradGuard no_grad;
  std::map<FlatSegment*, bool> kept;  // whether any view of the segment still has a gradient
  for (const MasterView& view : master_views_) {
    bool& is_kept = kept[&view.held.segment];
    is_kept = is_kept || view.tensor.grad().defined();
  }
  for (const MasterView& view : master_views_) {
    FlatSegment& segment = view.held.segment;
    if (!segment.has_gradient()) {
      continue;
    }
    if (view.tensor.grad().defined()) {
      at::Tensor sum = part_of(segment.gradient(), view.held);
      if (sum.data_ptr() != view.tensor.grad().data_ptr()) {
        sum.copy_(view.tensor.grad());
      }
    } else if (kept[&segment]) {
      segment.gradients()->forget(view.held.place, view.held.start, view.held.range.size());
    } else {
      segment.gradients()->forget();
    }
  }
}

void Step::show_gradients() {
  if (!masters_handed_out()) {
    return;
  }
  gradients_.agree_on_use();
  for (const MasterView& view : master_views_) {
    SegmentGradients& gradients = *view.held.segment.gradients();
    if (gradients.has_sum() && view.parameter.tensor.requires_grad() &&
        gradients.used(view.held.place)) {
      gradients.expose();
      view.tensor.mutable_grad() = part_of(gradients.shard(), view.held);
    }
  }
}

void Step::open_update_window() {
  if (awaits_update_window()) {
    await_readers();
    update_window_is_open_ = true;
  }
}

void Step::close_update_window() {
  if (is_idle() && graph_freed_elsewhere_.exchange(false)) {
    open_update_window();
  }
  if (update_window_is_open_) {
    publish();
    update_window_is_open_ = false;  // stays open where that failed, to be published again
  }
}

}  // namespace sherd::detail
