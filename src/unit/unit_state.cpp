#include "unit/unit_state.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/TensorImpl.h>

namespace sherd::detail {

namespace {

c10::ScalarType travelling_dtype(const Precision& precision, const UnitParameter& parameter) {
  const bool own = !precision.param_dtype || !c10::isFloatingType(parameter.original_dtype) ||
                   (precision.keeps_own_dtype && precision.keeps_own_dtype(parameter.name));
  return own ? parameter.original_dtype : *precision.param_dtype;
}

}  // namespace

UnitState::UnitState(int index, UnitPlan plan, const Mesh& mesh, Collectives& collectives,
                     GatherArena& arena)
    : index_(index),
      plan_(std::move(plan)),
      shard_rank_(mesh.shard_rank()),
      device_(mesh.world().device()),
      collectives_(collectives),
      arena_(arena) {
  std::vector<ParameterSpec> specs;
  for (const UnitParameter& parameter : parameters()) {
    specs.push_back({parameter.tensor.numel(), travelling_dtype(settings().precision, parameter),
                     parameter.trainable});
  }
  auto layouts = lay_out(specs, mesh.shard_size(), mesh.replicate_size(), device_);
  for (SegmentLayout& layout : layouts) {
    if (layout.dtype == c10::kBFloat16) {
      layout.reduce_dtype = settings().precision.reduce_dtype;
    }
    std::vector<std::vector<int64_t>> shapes;
    std::vector<std::string> names;
    for (size_t place = 0; place < layout.places.size(); ++place) {
      auto& parameter = plan_.parameters[static_cast<size_t>(layout.places[place].parameter)];
      parameter.segment = segments_.size();
      parameter.place = place;
      shapes.push_back(parameter.tensor.sizes().vec());
      names.push_back(parameter.name);
    }
    segments_.push_back(std::make_unique<FlatSegment>(std::move(layout), std::move(shapes), names,
                                                      name(), settings().precision.master));
  }
}

HeldPart UnitState::held_part(const UnitParameter& parameter) const {
  FlatSegment& segment = *segments_[parameter.segment];
  const ParameterPlace& place = segment.layout().places[parameter.place];
  return {segment, parameter.place, segment.layout().held_by(place, shard_rank_),
          segment.layout().start_in_piece(place, shard_rank_)};
}

void UnitState::take_over_parameters() {
  const at::NoGradGuard no_grad;
  for (UnitParameter& parameter : parameters()) {
    const HeldPart held = held_part(parameter);
    if (parameter.has_values && held.range.size() > 0) {
      held.values().write(
          parameter.tensor.detach().reshape({-1}).narrow(0, held.range.begin, held.range.size()));
    }
    // The module's members and registry hold this very TensorImpl, so both follow.
    const at::Tensor view = held.segment.parameter_view(parameter.place);
    parameter.tensor.unsafeGetTensorImpl()->shallow_copy_from(view.getIntrusivePtr());
    parameter.tensor.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
    parameter.tensor.mutable_grad().reset();
  }
  point_parameters();
}

// Points parameters into their gathered segment, as fp32 tensors if that is in full precision, or,
// of a resharded one, at memory without access rights.
void UnitState::point_parameters() {
  for (const UnitParameter& parameter : parameters()) {
    const FlatSegment& segment = *segments_[parameter.segment];
    at::TensorImpl* impl = parameter.tensor.unsafeGetTensorImpl();
    const auto dtype = segment.in_full_precision() ? c10::kFloat : segment.layout().dtype;
    if (parameter.tensor.scalar_type() != dtype) {
      impl->shallow_copy_from(segment.parameter_view(parameter.place).getIntrusivePtr());
    }
    impl->set_storage_keep_dtype(segment.storage_of(parameter.place));
  }
}

int64_t UnitState::gathered_bytes() const {
  int64_t bytes = 0;
  for (const auto& segment : segments_) {
    bytes += segment->layout().bytes();
  }
  return bytes;
}

std::optional<c10::ScalarType> UnitState::compute_dtype() const {
  const auto& dtype = settings().precision.param_dtype;
  return dtype && full_precision_ ? c10::kFloat : dtype;
}

void UnitState::unshard(bool in_evaluation) {
  const bool full_precision = in_evaluation && settings().precision.full_precision_in_eval;
  if (storage_ == StorageState::Unsharded && full_precision == full_precision_) {
    return;
  }
  reshard();
  full_precision_ = full_precision;
  storage_ = StorageState::Unsharded;  // so that reshard() frees segments gathered before one fails
  gather_pending_ = true;
  try {
    for (const auto& segment : segments_) {
      collectives_.run(Work::Collective, "all-gather", name(),
                       [&] { segment->gather(arena_, full_precision); });
    }
  } catch (...) {
    give_up(std::current_exception());
  }
  point_parameters();
}

void UnitState::wait_unshard() {
  if (!std::exchange(gather_pending_, false)) {
    return;
  }
  // After a failure the other segments are waited for too: nothing may write into a slot that is
  // given back. Only if peers are lost no wait would end.
  std::exception_ptr failure;
  for (const auto& segment : segments_) {
    if (!segment->is_gathered() || (failure != nullptr && collectives_.peers_lost())) {
      continue;
    }
    try {
      collectives_.run(Work::Wait, "wait for the all-gather", name(),
                       [&] { segment->wait_gather(); });
    } catch (...) {
      failure = failure != nullptr ? failure : std::current_exception();
    }
  }
  if (failure != nullptr) {
    give_up(failure);
  }
}

// What was not gathered, or not waited for, must not be used.
void UnitState::give_up(const std::exception_ptr& failure) {
  quietly([this] { reshard(); });
  std::rethrow_exception(failure);
}

void UnitState::reshard() {
  if (storage_ == StorageState::Sharded) {
    return;
  }
  wait_unshard();
  for (const auto& segment : segments_) {
    if (segment->is_gathered()) {
      segment->release(arena_);
    }
  }
  point_parameters();
  storage_ = StorageState::Sharded;
}

SegmentGradients& UnitState::gradients_of(size_t parameter) const {
  return *segments_[parameters()[parameter].segment]->gradients();
}

at::Tensor UnitState::gradient_place(size_t parameter) {
  SegmentGradients& gradients = gradients_of(parameter);
  if (!gradients.bound()) {
    collectives_.run(Work::Wait, "wait for a reduce buffer", name(), [&] { gradients.bind(); });
  }
  return gradients.view(parameters()[parameter].place);
}

bool UnitState::gradient_written(size_t parameter) const {
  return gradients_of(parameter).written(parameters()[parameter].place);
}

at::Tensor UnitState::begin_gradient_write(size_t parameter) {
  const at::Tensor place = gradient_place(parameter);
  if (!gradient_written(parameter)) {
    return place;
  }
  return collectives_.run(Work::Local, "gradient of a second use", name(),
                          [&] { return at::empty_like(place); });
}

void UnitState::end_gradient_write(size_t parameter, const at::Tensor& written) {
  if (gradient_written(parameter)) {
    gradient_place(parameter).add_(written);
  } else {
    gradients_of(parameter).mark_written(parameters()[parameter].place);
  }
}

at::Tensor UnitState::begin_gradient_add(size_t parameter) {
  at::Tensor place = gradient_place(parameter);
  if (!gradient_written(parameter)) {
    place.zero_();
    end_gradient_write(parameter, place);
  }
  return place;
}

bool UnitState::is_trained(const FlatSegment& segment) const {
  const auto requires_grad = [&](const ParameterPlace& place) {
    return plan_.parameters[static_cast<size_t>(place.parameter)].tensor.requires_grad();
  };
  const SegmentLayout& layout = segment.layout();
  return layout.trainable &&
         (segment.gradients()->bound() || std::ranges::any_of(layout.places, requires_grad));
}

}  // namespace sherd::detail
