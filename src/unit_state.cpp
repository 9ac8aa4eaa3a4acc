#include "unit_state.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>

#include "autograd_seam.h"
#include "runtime.h"

namespace sherd::detail {

UnitState::UnitState(Runtime& runtime, int index, int level, std::string name,
                     std::vector<UnitParameter> parameters)
    : runtime_(runtime),
      index_(index),
      level_(level),
      name_(std::move(name)),
      parameters_(std::move(parameters)) {
  const auto& wanted = runtime.options().precision.param_dtype;
  std::vector<ParameterSpec> specs;
  for (const UnitParameter& parameter : parameters_) {
    specs.push_back(
        {parameter.tensor.numel(), wanted.value_or(parameter.original_dtype), parameter.trainable});
  }
  auto layouts = lay_out(specs, runtime.mesh().shard_size());
  for (size_t s = 0; s < layouts.size(); ++s) {
    std::vector<std::vector<int64_t>> shapes;
    for (size_t place = 0; place < layouts[s].places.size(); ++place) {
      UnitParameter& parameter =
          parameters_[static_cast<size_t>(layouts[s].places[place].parameter)];
      parameter.segment = s;
      parameter.place = place;
      shapes.push_back(parameter.tensor.sizes().vec());
    }
    segments_.push_back(std::make_unique<FlatSegment>(std::move(layouts[s]), std::move(shapes)));
    FlatSegment& segment = *segments_.back();
    for (size_t place = 0; place < segment.layout().places.size(); ++place) {
      const auto parameter = static_cast<size_t>(segment.layout().places[place].parameter);
      segment.name_parameter(place, parameters_[parameter].name, name_);
    }
  }
}

int64_t UnitState::gathered_bytes() const {
  int64_t bytes = 0;
  for (const auto& segment : segments_) {
    bytes += segment->layout().bytes();
  }
  return bytes;
}

void UnitState::copy_values(const UnitParameter& parameter, const at::Tensor& values) {
  const FlatSegment& segment = *segments_[parameter.segment];
  const ParameterPlace& place = segment.layout().places[parameter.place];
  const int rank = runtime_.communicator().rank();
  const Range held = segment.layout().held_by(place, rank);
  if (held.size() == 0) {
    return;
  }
  const int64_t start = place.offset + held.begin - rank * segment.layout().shard_numel;
  const at::Tensor& shard = parameter.trainable ? segment.master() : segment.travelling();
  shard.narrow(0, start, held.size())
      .copy_(values.reshape({-1}).narrow(0, held.begin, held.size()));
}

void UnitState::take_over_parameters() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    UnitParameter& parameter = parameters_[i];
    if (parameter.has_values) {
      copy_values(parameter, parameter.tensor.detach());
    }
    // The module's members and registry hold this very TensorImpl, so both follow.
    const at::Tensor view = segments_[parameter.segment]->parameter_view(parameter.place);
    parameter.tensor.unsafeGetTensorImpl()->shallow_copy_from(view.getIntrusivePtr());
    parameter.tensor.mutable_grad().reset();
    install_gradient_hook(runtime_.shared_from_this(), *this, i);
  }
}

void UnitState::unshard() {
  if (storage_ == StorageState::Unsharded) {
    return;
  }
  Communicator& communicator = runtime_.communicator();
  for (const auto& segment : segments_) {
    if (!communicator.gathers_in_place()) {
      segment->slot = runtime_.arena().acquire(segment->layout().bytes());
    }
    void* gathered = runtime_.named(
        "all-gather", name_, [&] { return communicator.gather(segment->id(), segment->slot); });
    segment->point_parameters_at(gathered);
  }
  storage_ = StorageState::Unsharded;
  gather_pending_ = true;
}

void UnitState::wait_unshard() {
  if (!std::exchange(gather_pending_, false)) {
    return;
  }
  for (const auto& segment : segments_) {
    runtime_.named("all-gather", name_,
                   [&] { runtime_.communicator().wait_gather(segment->id()); });
  }
}

void UnitState::reshard() {
  if (storage_ == StorageState::Sharded) {
    return;
  }
  wait_unshard();
  for (const auto& segment : segments_) {
    segment->point_parameters_at(nullptr);
    runtime_.communicator().release(segment->id());
    if (segment->slot != nullptr) {
      runtime_.arena().release(std::exchange(segment->slot, nullptr));
    }
  }
  storage_ = StorageState::Sharded;
}

void UnitState::pre_forward() {
  runtime_.begin_forward(*this);
  ++forward_depth_;
  training_ = TrainingState::Forward;
  unshard();
  wait_unshard();
  runtime_.consumed(*this);
  runtime_.prefetch_in_forward();
}

void UnitState::post_forward(bool outputs_need_backward) {
  --forward_depth_;
  uses_ += outputs_need_backward ? 1 : 0;
  training_ = TrainingState::Idle;
  if (forward_depth_ == 0 && runtime_.reshards_after_forward(*this, awaits_backward())) {
    reshard();
  }
  runtime_.end_forward();
}

void UnitState::pre_backward() {
  runtime_.begin_backward();
  training_ = TrainingState::PreBackward;
  unshard();
  wait_unshard();
  runtime_.consumed(*this);
  runtime_.prefetch_in_backward(*this);
}

void UnitState::finish_use() {
  uses_ = std::max(0, uses_ - 1);
  if (uses_ == 0) {
    post_backward();
  }
}

bool UnitState::needs_post_backward() const {
  return uses_ > 0 || std::any_of(segments_.begin(), segments_.end(),
                                  [](const auto& segment) { return segment->gradients_bound(); });
}

bool UnitState::is_trained(const FlatSegment& segment) const {
  const auto& places = segment.layout().places;
  return segment.layout().trainable &&
         (segment.gradients_bound() ||
          std::any_of(places.begin(), places.end(), [&](const ParameterPlace& place) {
            return parameters_[static_cast<size_t>(place.parameter)].tensor.requires_grad();
          }));
}

void UnitState::post_backward() {
  training_ = TrainingState::PostBackward;
  uses_ = 0;
  reshard();
  for (const auto& segment : segments_) {
    if (!is_trained(*segment)) {
      continue;
    }
    runtime_.named("reduction", name_, [&] {
      if (!segment->gradients_bound()) {
        segment->bind_gradients();  // every rank reduces, also one where nothing was used
      }
      segment->reduce(runtime_.gradient_scale());
    });
  }
  training_ = TrainingState::Idle;
}

void UnitState::abandon() {
  for (const auto& segment : segments_) {
    segment->abandon_gradients();
  }
  uses_ = 0;
  forward_depth_ = 0;
  training_ = TrainingState::Idle;
  reshard();
}

at::Tensor UnitState::gradient_slot(size_t parameter) {
  const UnitParameter& p = parameters_[parameter];
  FlatSegment& segment = *segments_[p.segment];
  if (!segment.gradients_bound()) {
    runtime_.named("reduction", name_, [&] { segment.bind_gradients(); });
  }
  return segment.gradient_view(p.place);
}

bool UnitState::gradient_written(size_t parameter) const {
  const UnitParameter& p = parameters_[parameter];
  return segments_[p.segment]->written(p.place);
}

void UnitState::mark_gradient_written(size_t parameter) {
  const UnitParameter& p = parameters_[parameter];
  segments_[p.segment]->mark_written(p.place);
}

}  // namespace sherd::detail
