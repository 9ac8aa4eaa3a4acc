#include "unit_state.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>

#include "autograd_seam.h"
#include "runtime.h"

namespace sherd::detail {

namespace {

c10::ScalarType travelling_dtype(const Precision& precision, const UnitParameter& parameter) {
  const bool own = !precision.param_dtype ||
                   (precision.keeps_own_dtype && precision.keeps_own_dtype(parameter.name));
  return own ? parameter.original_dtype : *precision.param_dtype;
}

}  // namespace

UnitState::UnitState(Runtime& runtime, int index, int level, std::string name,
                     UnitSettings settings, std::vector<UnitParameter> parameters)
    : runtime_(runtime),
      index_(index),
      level_(level),
      name_(std::move(name)),
      settings_(std::move(settings)),
      parameters_(std::move(parameters)) {
  std::vector<ParameterSpec> specs;
  for (const UnitParameter& parameter : parameters_) {
    specs.push_back({parameter.tensor.numel(), travelling_dtype(settings_.precision, parameter),
                     parameter.trainable});
  }
  const Mesh& mesh = runtime.mesh();
  auto layouts = lay_out(specs, mesh.shard_size(), mesh.replicate_size(), mesh.world().device());
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

std::optional<c10::ScalarType> UnitState::compute_dtype() const {
  const auto& dtype = settings_.precision.param_dtype;
  return dtype && full_precision_ ? c10::kFloat : dtype;
}

void UnitState::copy_values(const UnitParameter& parameter, const at::Tensor& values) {
  const FlatSegment& segment = *segments_[parameter.segment];
  const SegmentLayout& layout = segment.layout();
  const ParameterPlace& place = layout.places[parameter.place];
  const int rank = runtime_.mesh().shard_rank();
  const Range held = layout.held_by(place, rank);
  if (held.size() > 0) {
    segment.values()
        .narrow(0, layout.start_in_piece(place, rank), held.size())
        .copy_(values.reshape({-1}).narrow(0, held.begin, held.size()));
  }
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
    parameter.tensor.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
    parameter.tensor.mutable_grad().reset();
    install_gradient_hook(runtime_.shared_from_this(), *this, i);
  }
  follow_segments();
}

// Parameters lie where their segment is gathered, as fp32 tensors if that is in full precision; of
// a resharded one they lie nowhere.
void UnitState::follow_segments() {
  for (const UnitParameter& parameter : parameters_) {
    const FlatSegment& segment = *segments_[parameter.segment];
    at::TensorImpl* impl = parameter.tensor.unsafeGetTensorImpl();
    const auto dtype = segment.in_full_precision() ? c10::kFloat : segment.layout().dtype;
    if (parameter.tensor.scalar_type() != dtype) {
      impl->shallow_copy_from(segment.parameter_view(parameter.place).getIntrusivePtr());
    }
    impl->set_storage_keep_dtype(segment.storage_of(parameter.place));
  }
}

void UnitState::unshard(bool in_evaluation) {
  const bool full_precision = in_evaluation && settings_.precision.full_precision_in_eval;
  if (storage_ == StorageState::Unsharded && full_precision == full_precision_) {
    return;
  }
  reshard();
  full_precision_ = full_precision;
  storage_ = StorageState::Unsharded;  // also of some segments alone, should one gather fail
  gather_pending_ = true;
  try {
    gather_segments(full_precision);
  } catch (...) {
    const auto failure = std::current_exception();
    try {
      reshard();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the first failure is the one to tell
    }
    std::rethrow_exception(failure);
  }
  follow_segments();
}

void UnitState::gather_segments(bool full_precision) {
  for (const auto& segment : segments_) {
    runtime_.collective("all-gather", name_,
                        [&] { segment->gather(runtime_.arena(), full_precision); });
  }
}

void UnitState::wait_unshard() {
  if (!std::exchange(gather_pending_, false)) {
    return;
  }
  for (const auto& segment : segments_) {
    if (segment->is_gathered()) {
      runtime_.named("wait for the all-gather", name_, [&] { segment->wait_gather(); });
    }
  }
}

void UnitState::reshard() {
  if (storage_ == StorageState::Sharded) {
    return;
  }
  wait_unshard();
  for (const auto& segment : segments_) {
    if (segment->is_gathered()) {
      segment->release(runtime_.arena());
    }
  }
  follow_segments();
  storage_ = StorageState::Sharded;
}

void UnitState::pre_forward() {
  runtime_.begin_forward(*this);
  ++forward_depth_;
  try {
    training_ = TrainingState::Forward;
    unshard(runtime_.is_evaluating());
    wait_unshard();
    runtime_.consumed(*this);
    runtime_.prefetch_in_forward();
  } catch (...) {
    leave_forward();
    runtime_.forward_failed();
    throw;
  }
}

void UnitState::post_forward(UnitUse* use) {
  --forward_depth_;
  if (use != nullptr) {
    uses_.push_back(use);
    called_ = true;
  }
  training_ = TrainingState::Idle;
  if (forward_depth_ == 0) {
    reshard_after_forward();
  }
  runtime_.end_forward(*this);
}

void UnitState::reshard_after_forward() {
  if (awaits_backward() && !settings_.reshard_after_forward) {
    return;
  }
  if (awaits_backward()) {
    for (const auto& segment : segments_) {
      segment->keep_post_forward_shard();
    }
  }
  reshard();
}

void UnitState::leave_forward() {
  forward_depth_ = std::max(0, forward_depth_ - 1);
  training_ = TrainingState::Idle;
  if (forward_depth_ == 0 && !awaits_backward()) {
    reshard();
  }
}

void UnitState::pre_backward(UnitUse* use) {
  if (at::GradMode::is_enabled()) {
    throw Error(ExitCode::Usage,
                "[backward] unit '" + name_ +
                    "' was to run backward with create_graph, and the gradient of a gradient needs "
                    "parameters that are sharded again by then: leave create_graph off, or compute "
                    "that term with a model that is not sharded.");
  }
  runtime_.begin_backward();
  if (std::find(uses_.begin(), uses_.end(), use) == uses_.end()) {
    uses_.push_back(use);  // of a graph that was kept after a backward
  }
  use->set_in_backward(true);
  training_ = TrainingState::PreBackward;
  unshard();
  wait_unshard();
  runtime_.consumed(*this);
  if (runtime_.options().backward_prefetch == BackwardPrefetch::Pre) {
    runtime_.prefetch_in_backward(*this);
  }
}

bool UnitState::is_in_backward() const {
  return std::any_of(uses_.begin(), uses_.end(),
                     [](const auto* use) { return use->in_backward(); });
}

void UnitState::reshard_after_backward() {
  if (backward_settings.reshard_after_backward && !in_forward() && !is_in_backward()) {
    reshard();
  }
}

void UnitState::finish_use(UnitUse* use) {
  use->set_in_backward(false);
  if (!accumulates_gradients(*this)) {
    training_ = TrainingState::Idle;
    return reshard_after_backward();
  }
  drop_use(use);
  if (uses_.empty()) {
    post_backward();
  }
}

UnitUse::~UnitUse() {
  unit_.drop_use(this);
  runtime_->graph_freed();
}

void UnitState::drop_use(const UnitUse* use) {
  std::erase(uses_, use);
}

bool UnitState::accumulates_unsharded() const {
  // Over one rank, reducing is not communication.
  return !backward_settings.requires_gradient_sync && runtime_.mesh().shard_size() > 1;
}

bool UnitState::is_trained(const FlatSegment& segment) const {
  const auto& places = segment.layout().places;
  return segment.layout().trainable &&
         (segment.gradients()->bound() ||
          std::any_of(places.begin(), places.end(), [&](const ParameterPlace& place) {
            return parameters_[static_cast<size_t>(place.parameter)].tensor.requires_grad();
          }));
}

void UnitState::reduce(SegmentGradients& gradients) {
  const bool all_reduce =
      backward_settings.requires_gradient_sync && backward_settings.requires_all_reduce;
  gradients.reduce(runtime_.gradient_scale());
  runtime_.reductions().reduction_started(gradients, all_reduce);
}

void UnitState::post_backward() {
  training_ = TrainingState::PostBackward;
  std::erase_if(uses_, [](const auto* use) { return use->in_backward(); });
  called_ = !uses_.empty();
  reshard_after_backward();
  for (const auto& segment : segments_) {
    if (!is_trained(*segment)) {
      continue;
    }
    runtime_.gradients_changed();
    SegmentGradients& gradients = *segment->gradients();
    runtime_.collective("reduction", name_, [&] {
      if (!gradients.bound()) {
        gradients.bind();  // every rank reduces, also one where nothing was used
      }
      if (accumulates_unsharded()) {
        gradients.accumulate_unsharded();
      } else {
        reduce(gradients);
      }
    });
  }
  training_ = TrainingState::Idle;
  if (runtime_.options().backward_prefetch == BackwardPrefetch::Post) {
    runtime_.prefetch_in_backward(*this);
  }
}

void UnitState::finish_backward() {
  const bool left = std::any_of(segments_.begin(), segments_.end(), [&](const auto& segment) {
    const SegmentGradients* gradients = segment->gradients();
    return gradients != nullptr &&
           (gradients->bound() || (gradients->has_unsharded_sum() && !accumulates_unsharded()));
  });
  if (left || (accumulates_gradients(*this) && (called_ || is_in_backward()))) {
    return post_backward();  // also where no gradient came: other ranks may have got some
  }
  for (UnitUse* use : uses_) {
    use->set_in_backward(false);
  }
  reshard_after_backward();  // gathered ahead and not used
}

void UnitState::abandon(bool in_backward) {
  for (const auto& segment : segments_) {
    if (in_backward && segment->gradients() != nullptr) {
      segment->gradients()->abandon();
    }
  }
  for (UnitUse* use : uses_) {
    use->set_in_backward(false);
  }
  uses_.clear();
  called_ = false;
  forward_depth_ = 0;
  training_ = TrainingState::Idle;
  reshard();
}

at::Tensor UnitState::gradient_slot(size_t parameter) {
  const UnitParameter& p = parameters_[parameter];
  SegmentGradients& gradients = *segments_[p.segment]->gradients();
  if (!gradients.bound()) {
    runtime_.named("wait for a reduce buffer", name_, [&] { gradients.bind(); });
  }
  return gradients.view(p.place);
}

bool UnitState::gradient_written(size_t parameter) const {
  const UnitParameter& p = parameters_[parameter];
  return segments_[p.segment]->gradients()->written(p.place);
}

void UnitState::mark_gradient_written(size_t parameter) {
  const UnitParameter& p = parameters_[parameter];
  segments_[p.segment]->gradients()->mark_written(p.place);
}

}  // namespace sherd::detail
