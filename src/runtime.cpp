#include "runtime.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <torch/csrc/autograd/engine.h>

#include "kernels/kernels.h"

namespace sherd::detail {

namespace {

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::Construction:
      return "construction";
    case Phase::Forward:
      return "forward";
    case Phase::Backward:
      return "backward";
    case Phase::Optimizer:
      return "the optimizer";
  }
  return "";
}

}  // namespace

Runtime::Runtime(const Mesh& mesh, const ShardOptions& options)
    : mesh_(mesh), options_(options), schedule_(options.prefetch_depth) {
  set_gradient_divide_factor(mesh_.shard_size());
}

Runtime::~Runtime() {
  try {
    abandon();     // nothing may still be written into memory that ends here
  } catch (...) {  // NOLINT(bugprone-empty-catch): the other ranks are gone, and so is this one
  }
}

UnitState& Runtime::add_unit(std::string name, int level, std::vector<UnitParameter> parameters) {
  const int index = static_cast<int>(units_.size());
  units_.push_back(
      std::make_unique<UnitState>(*this, index, level, std::move(name), std::move(parameters)));
  return *units_.back();
}

// The root, the units ahead, the one that runs and those it is nested in.
int64_t Runtime::gathered_limit_bytes() const {
  int64_t largest = 0;
  int levels = 1;
  for (const auto& unit : units_) {
    if (!unit->is_root()) {
      largest = std::max(largest, unit->gathered_bytes());
      levels = std::max(levels, unit->level());
    }
  }
  return units_.front()->gathered_bytes() + (options_.prefetch_depth + levels) * largest;
}

void Runtime::check_agreement() {
  std::string mine = "strategy " + std::to_string(static_cast<int>(options_.strategy)) +
                     ", prefetch_depth " + std::to_string(options_.prefetch_depth) + "\n";
  for (const auto& unit : units_) {
    for (const UnitParameter& parameter : unit->parameters()) {
      const auto& segment = unit->segments()[parameter.segment];
      mine += "parameter '" + parameter.name + "' of unit '" + unit->name() + "': shape " +
              c10::str(parameter.tensor.sizes()) + ", " + c10::toString(segment->layout().dtype) +
              (parameter.trainable ? "" : ", frozen") + "\n";
    }
  }
  const std::vector<std::string> all = mesh_.world().all_gather(mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) {
      continue;
    }
    const auto [first, other] =
        std::mismatch(all[0].begin(), all[0].end(), all[rank].begin(), all[rank].end());
    const auto line_at = [](const std::string& text, std::string::const_iterator place) {
      const auto offset = static_cast<size_t>(place - text.begin());
      const size_t begin = offset == 0 ? 0 : text.rfind('\n', offset - 1) + 1;
      return begin >= text.size() ? std::string("nothing more")
                                  : text.substr(begin, text.find('\n', begin) - begin);
    };
    throw Error(ExitCode::RanksDisagree,
                "[fully_shard] ranks disagree. Rank 0 has " + line_at(all[0], first) + "; rank " +
                    std::to_string(rank) + " has " + line_at(all[rank], other) +
                    ". Start all ranks with the same model and options.");
  }
}

void Runtime::attach() {
  check_agreement();
  std::vector<SegmentSpec> specs;
  for (const auto& unit : units_) {
    for (const auto& segment : unit->segments()) {
      const SegmentLayout& layout = segment->layout();
      specs.push_back(
          {unit->name(), layout.shard_numel, layout.dtype, layout.trainable, unit->is_root()});
    }
  }
  arena_ = std::make_unique<GatherArena>(gathered_limit_bytes(), ledger_);
  communicator_ = mesh_.world().make_communicator();
  communicator_->attach(std::move(specs), ledger_);
  Communicator::Segment id = 0;
  for (const auto& unit : units_) {
    for (const auto& segment : unit->segments()) {
      segment->attach(*communicator_, id++, ledger_);
    }
    unit->take_over_parameters();
  }
  publish();
}

void Runtime::refuse_while_full_parameters_shown(const std::string& what) const {
  if (full_parameters_shown_) {
    throw Error(ExitCode::Usage, "[with_full_parameters] " + what +
                                     " inside it, where only parameters are looked at and "
                                     "written: do it after that.");
  }
}

void Runtime::reshard_all() {
  refuse_while_full_parameters_shown("shards were to be updated or read");
  prefetched_.clear();
  for (const auto& unit : units_) {
    unit->reshard();
  }
}

void Runtime::publish() {
  reshard_all();
  for (const auto& unit : units_) {
    for (const auto& segment : unit->segments()) {
      named("publication", unit->name(), [&] { communicator_->begin_update(segment->id()); });
      segment->write_travelling_from_master();
      communicator_->publish(segment->id());
    }
  }
}

void Runtime::require_values(const std::string& operation) const {
  for (const auto& unit : units_) {
    for (const UnitParameter& parameter : unit->parameters()) {
      if (!parameter.has_values) {
        throw Error(ExitCode::Usage,
                    "[" + operation + "] parameter '" + parameter.name +
                        "' was built on the meta device and has no values: call "
                        "sherd::load_safetensors(model, folder), sherd::load_from_rank0(model, "
                        "source) or sherd::initialize(model, seed, param_init_fn), or write "
                        "ParameterShard::value of every parameter and call publish(), before the "
                        "model is used.");
      }
    }
  }
  for (const ModelBuffer& buffer : buffers_) {
    if (!buffer.is_written()) {
      throw Error(ExitCode::Usage,
                  "[" + operation + "] buffer '" + buffer.name +
                      "' was built on the meta device and has no values: fill it in place, or call "
                      "sherd::load_from_rank0(model, source) or sherd::initialize(model, seed, "
                      "param_init_fn, buffer_init_fn), before the model is used.");
    }
  }
}

void Runtime::begin_forward(UnitState& unit) {
  refuse_while_full_parameters_shown("unit '" + unit.name() + "' was called");
  if (!values_checked_) {
    require_values("forward");
    values_checked_ = true;
  }
  if (unit.is_root() && backward_active_) {
    abandon();  // the last backward ended in an exception: its end callback never ran
  }
  optim_views_.close_update_window();
  const bool nothing_outstanding = std::none_of(
      units_.begin(), units_.end(),
      [](const auto& other) { return other->awaits_backward() || other->in_forward(); });
  if (unit.is_root() && nothing_outstanding) {
    drop_prefetched(0);
    schedule_.begin_iteration();
  }
  phase_ = Phase::Forward;
  schedule_.record_forward(unit.index());
}

void Runtime::prefetch_in_forward() {
  prefetch(schedule_.ahead_in_forward());
}

void Runtime::end_forward() {
  const bool outstanding = std::any_of(units_.begin(), units_.end(), [](const auto& unit) {
    return unit->awaits_backward() || unit->in_forward();
  });
  if (!outstanding && !backward_active_) {
    optim_views_.open_update_window();
  }
}

void Runtime::begin_backward() {
  if (std::exchange(backward_active_, true)) {
    return;
  }
  optim_views_.close_update_window();
  optim_views_.take_gradient_resets();
  phase_ = Phase::Backward;
  apply_gradient_factor();  // what was clipped is added to
  schedule_.begin_backward();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this()] { self->end_backward(); });
}

void Runtime::prefetch_in_backward(const UnitState& unit) {
  prefetch(schedule_.ahead_in_backward(unit.index()));
}

void Runtime::prefetch(const std::vector<int>& targets) {
  for (const int target : targets) {
    UnitState& unit = *units_[static_cast<size_t>(target)];
    if (unit.storage_state() == StorageState::Unsharded) {
      continue;
    }
    drop_prefetched(static_cast<size_t>(schedule_.depth()) - 1);
    unit.unshard();
    prefetched_.push_back(&unit);
  }
}

void Runtime::drop_prefetched(size_t keep) {
  while (prefetched_.size() > keep) {
    UnitState* oldest = prefetched_.front();
    prefetched_.pop_front();
    oldest->reshard();
  }
}

void Runtime::consumed(const UnitState& unit) {
  std::erase(prefetched_, &unit);
}

bool Runtime::reshards_after_forward(const UnitState& unit, bool backward_follows) const {
  if (!backward_follows) {
    return true;
  }
  return options_.strategy == Strategy::FullShard && !unit.is_root();
}

void Runtime::end_backward() {
  for (const auto& unit : units_) {
    if (unit->needs_post_backward()) {
      unit->post_backward();
    } else {
      unit->reshard();  // gathered ahead and not used
    }
  }
  prefetched_.clear();
  named("reduction", "all", [&] { communicator_->finish_reductions(); });
  backward_active_ = false;
  optim_views_.show_gradients();
  optim_views_.open_update_window();
}

void Runtime::abandon() {
  prefetched_.clear();
  for (const auto& unit : units_) {
    unit->abandon();
  }
  if (communicator_ != nullptr) {
    communicator_->abandon();
  }
  backward_active_ = false;
  optim_views_.expect_update();
}

void Runtime::zero_grad() {
  for (const auto& unit : units_) {
    for (const auto& segment : unit->segments()) {
      segment->forget_gradient();
    }
  }
  optim_views_.forget_gradients();
  pending_gradient_factor_ = 1.0;
}

void Runtime::set_gradient_divide_factor(double factor) {
  if (!(factor > 0) || !std::isfinite(factor)) {
    throw Error(ExitCode::Usage, "[set_gradient_divide_factor] the factor must be above 0, got " +
                                     std::to_string(factor) + ".");
  }
  gradient_scale_ = static_cast<float>(1.0 / factor);
}

void Runtime::apply_gradient_factor() {
  const double factor = std::exchange(pending_gradient_factor_, 1.0);
  if (factor == 1.0) {
    return;
  }
  for (const auto& unit : units_) {
    for (const auto& segment : unit->segments()) {
      if (segment->has_gradient()) {
        kernels::scale_in_place(segment->gradient().mutable_data_ptr<float>(),
                                static_cast<float>(factor), segment->layout().shard_numel);
      }
    }
  }
}

std::string Runtime::where(const char* operation, const std::string& unit) const {
  return std::string(operation) + " of unit '" + unit + "', in " + name_of(phase_) + " of step " +
         std::to_string(step_) + ", on rank " + std::to_string(mesh_.world().rank()) + " of " +
         std::to_string(mesh_.world().size()) + ": ";
}

}  // namespace sherd::detail
