#include "runtime.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include "agreement.h"

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

// Calls back unless done() was called: autograd drops the callbacks of a backward that fails.
class Unless {
 public:
  explicit Unless(std::function<void()> call) : call_(std::move(call)) {}
  ~Unless() {
    if (call_) {
      call_();
    }
  }
  Unless(const Unless&) = delete;
  Unless& operator=(const Unless&) = delete;
  void done() { call_ = nullptr; }

 private:
  std::function<void()> call_;
};

}  // namespace

Runtime::Runtime(Mesh mesh, ShardOptions options)
    : mesh_(std::move(mesh)), options_(std::move(options)), schedule_(options_.prefetch_depth) {
  set_gradient_divide_factor(mesh_.world().size());
}

Runtime::~Runtime() {
  try {
    abandon();     // nothing may still be written into memory that ends here
  } catch (...) {  // NOLINT(bugprone-empty-catch): the other ranks are gone, and so is this one
  }
}

UnitState& Runtime::add_unit(std::string name, int level, UnitSettings settings,
                             std::vector<UnitParameter> parameters) {
  const int index = static_cast<int>(units_.size());
  units_.push_back(std::make_unique<UnitState>(*this, index, level, std::move(name),
                                               std::move(settings), std::move(parameters)));
  return *units_.back();
}

// The units that are kept (the root is), those ahead, the one that runs and those it is nested in.
int64_t Runtime::gathered_limit_bytes() const {
  int64_t kept = 0;
  int64_t largest = 0;
  int levels = 1;
  for (const auto& unit : units_) {
    if (unit->is_root() || !unit->settings().reshard_after_forward ||
        !unit->backward_settings.reshard_after_backward) {
      kept += unit->gathered_bytes();
    } else {
      largest = std::max(largest, unit->gathered_bytes());
      levels = std::max(levels, unit->level());
    }
  }
  return kept + (options_.prefetch_depth + levels) * largest;
}

void Runtime::limit_gathered() {
  arena_->set_limit(gathered_limit_bytes());
}

std::vector<int> Runtime::first_order() const {
  std::vector<int> order;
  for (const std::string& name : options_.forward_order) {
    const auto unit = std::find_if(units_.begin(), units_.end(),
                                   [&](const auto& other) { return other->name() == name; });
    if (unit == units_.end()) {
      throw Error(ExitCode::Usage, "[fully_shard] forward_order names '" + name +
                                       "', which is no unit: print ShardedModule::plan() to see "
                                       "their names.");
    }
    order.push_back((*unit)->index());
  }
  return order;
}

void Runtime::attach() {
  schedule_ = Schedule(options_.prefetch_depth, first_order());
  check_agreement(*this);
  const bool full_precision = std::any_of(units_.begin(), units_.end(), [](const auto& unit) {
    return unit->settings().precision.full_precision_in_eval;
  });
  arena_ = std::make_unique<GatherArena>(gathered_limit_bytes(), ledger_, mesh_.world().device());
  communicators_ = std::make_unique<ModelCommunicators>(mesh_, options_, full_precision);
  communicators_->attach(units_, mesh_.world().device(), ledger_);
  reductions_ = std::make_unique<ReductionQueue>(communicators_->all());
  const auto spare_shards = std::make_shared<SpareShards>();
  Communicator::Segment id = 0;
  for (const auto& unit : units_) {
    for (const auto& segment : unit->segments()) {
      segment->attach(communicators_->all(), id++, ledger_, spare_shards);
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
    for (const auto& segment : unit->segments()) {
      segment->forget_post_forward_shard();
    }
  }
}

void Runtime::publish() {
  reshard_all();
  for (const auto& unit : units_) {
    for (const auto& segment : unit->segments()) {
      collective("publication", unit->name(), [&] { segment->begin_update(); });
      segment->write_travelling_from_master();
      segment->publish();
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
  leave_failed_backward();
  if (recomputing_ > 0) {
    return;
  }
  optim_views_.close_update_window();
  const bool begins_anew = unit.is_root() || schedule_.has_begun(unit.index());
  if (begins_anew && is_idle()) {
    drop_prefetched(0);
    schedule_.begin_iteration();
    for (const auto& other : units_) {
      other->begin_iteration();
    }
  }
  phase_ = Phase::Forward;
  schedule_.begin_unit(unit.index());
}

void Runtime::end_forward(const UnitState& unit) {
  if (recomputing_ > 0) {
    return;
  }
  schedule_.end_unit(unit.index());
  if (optim_views_.handed_out() && is_idle() && !backward_active_) {
    optim_views_.open_update_window();
  }
}

// No unit runs forward, and none waits for a backward.
bool Runtime::is_idle() const {
  return std::none_of(units_.begin(), units_.end(), [](const auto& unit) {
    return unit->awaits_backward() || unit->in_forward();
  });
}

bool Runtime::in_forward() const {
  return std::any_of(units_.begin(), units_.end(),
                     [](const auto& unit) { return unit->in_forward(); });
}

void Runtime::graph_freed() noexcept {
  try {
    if (optim_views_.awaits_update_window() && !backward_active_ && is_idle()) {
      optim_views_.open_update_window();
    }
  } catch (...) {  // a peer is lost; the next collective says so
    optim_views_.expect_update();
  }
}

bool Runtime::is_evaluating() const {
  return !at::GradMode::is_enabled() && checkpointed_ == 0;
}

void Runtime::prefetch_in_forward() {
  if (recomputing_ == 0) {
    prefetch(schedule_.ahead_in_forward(), is_evaluating());
  }
}

void Runtime::begin_backward() {
  leave_failed_backward();
  if (std::exchange(backward_active_, true)) {
    return;
  }
  backward_failed_ = true;  // until its end has been asked for
  optim_views_.close_update_window();
  optim_views_.take_gradient_changes();
  phase_ = Phase::Backward;
  check_settings_of_backward();
  apply_gradient_factor();  // what was clipped is added to
  schedule_.begin_backward();
  auto failure = std::make_shared<Unless>([this] { backward_failed_ = true; });
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this(), failure] {
        failure->done();
        self->end_backward();
      });
  backward_failed_ = false;
}

// What is nested in a checkpointed unit is computed again, and summed, for each of its calls.
void Runtime::check_each_unit_is_summed_once() const {
  const auto nests = [&](const UnitState& outer) {
    return std::any_of(units_.begin(), units_.end(), [&](const auto& unit) {
      return unit->level() > outer.level() && unit->name().starts_with(outer.name() + ".");
    });
  };
  for (const auto& unit : units_) {
    if (unit->outstanding_uses() > 1 && unit->settings().checkpoint_activations && nests(*unit)) {
      throw Error(ExitCode::Usage,
                  "[backward] unit '" + unit->name() + "' was called " +
                      std::to_string(unit->outstanding_uses()) +
                      " times; it is checkpointed and holds other units, so these would be updated "
                      "after each call, and the optimizer works in backward: build AdamW without "
                      "in_backward, or checkpoint the inner units only.");
    }
  }
}

void Runtime::check_settings_of_backward() const {
  if (reductions_->optimizes_in_backward()) {
    check_each_unit_is_summed_once();
  }
  for (const auto& unit : units_) {
    const BackwardSettings& settings = unit->backward_settings;
    const bool ends_in_an_update = settings.requires_gradient_sync &&
                                   settings.requires_all_reduce && settings.reshard_after_backward;
    if (reductions_->optimizes_in_backward() && !ends_in_an_update) {
      throw Error(ExitCode::Usage,
                  "[backward] unit '" + unit->name() +
                      "' accumulates gradients or keeps its parameters, and the optimizer works in "
                      "backward: build AdamW without in_backward, or leave "
                      "set_requires_gradient_sync, set_requires_all_reduce and "
                      "set_reshard_after_backward at true.");
    }
  }
}

void Runtime::check_gradients_are_kept(const char* caller) const {
  if (reductions_->optimizes_in_backward()) {
    throw Error(ExitCode::Usage,
                std::string(caller) +
                    ": the optimizer works in backward, so gradients are gone when it ends: build "
                    "AdamW without in_backward to clip or unscale them.");
  }
}

void Runtime::prefetch_in_backward(const UnitState& unit) {
  prefetch(schedule_.ahead_in_backward(unit.index()), /*in_evaluation=*/false);
}

void Runtime::prefetch(const std::vector<int>& targets, bool in_evaluation) {
  for (const int target : targets) {
    UnitState& unit = *units_[static_cast<size_t>(target)];
    if (unit.storage_state() == StorageState::Unsharded) {
      continue;
    }
    drop_prefetched(static_cast<size_t>(schedule_.depth()) - 1);
    unit.unshard(in_evaluation);
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

void Runtime::end_backward() {
  backward_failed_ = true;  // until all of this has been done
  std::vector<SegmentGradients*> summed;
  for (const auto& unit : units_) {
    unit->finish_backward();
    const BackwardSettings& settings = unit->backward_settings;
    for (const auto& segment : unit->segments()) {
      if (segment->gradients() != nullptr && settings.requires_gradient_sync &&
          settings.requires_all_reduce) {
        summed.push_back(segment->gradients());
      }
    }
  }
  prefetched_.clear();
  collective("reduction", "all", [&] { reductions_->finish(summed); });
  backward_active_ = false;
  optim_views_.show_gradients();
  if (!in_forward()) {
    optim_views_.open_update_window();
  }
  backward_failed_ = false;
}

void Runtime::abandon() {
  const bool in_backward = std::exchange(backward_active_, false) || backward_failed_;
  prefetched_.clear();
  backward_failed_ = false;
  for (const auto& unit : units_) {
    unit->abandon(in_backward);
  }
  if (in_backward) {
    ++failed_backwards_;
    zero_grad();
  }
  if (reductions_ != nullptr && !peers_lost_) {  // else nothing could be attached
    reductions_->abandon();
    communicators_->abandon(in_backward);
  }
  optim_views_.expect_update();
}

void Runtime::leave_failed_backward() {
  if (backward_failed_) {
    abandon();
  }
}

void Runtime::forward_failed() {
  if (!in_forward()) {
    abandon();
  }
}

void Runtime::gradients_changed() {
  ++gradient_version_;
  used_parameters_.expect_changes();
}

void Runtime::zero_grad() {
  ++gradient_version_;
  for (const auto& unit : units_) {
    for (const auto& segment : unit->segments()) {
      if (segment->gradients() != nullptr) {
        segment->gradients()->forget();
      }
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
        segment->gradients()->scale(static_cast<float>(factor));
      }
    }
  }
}

void Runtime::check_gradients_are_reduced(const char* caller) const {
  for (const auto& unit : units_) {
    for (const auto& segment : unit->segments()) {
      const SegmentGradients* gradients = segment->gradients();
      if (gradients != nullptr &&
          (gradients->has_unsharded_sum() || gradients->awaits_all_reduce())) {
        throw Error(ExitCode::Usage,
                    std::string(caller) + ": gradients of unit '" + unit->name() +
                        "' have not been summed over all ranks: before the last micro-batch of a "
                        "step call set_requires_gradient_sync(true) and "
                        "set_requires_all_reduce(true).");
      }
    }
  }
}

void Runtime::compare_with_other_ranks(const char* operation, const std::string& unit) {
  const std::string mine = std::string(operation) + " of unit '" + unit + "', in " +
                           name_of(phase_) + " of step " + std::to_string(step_);
  const std::vector<std::string> all = mesh_.world().all_gather(mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      peers_lost_ = true;  // they do something else: nothing can be waited for any more
      throw Error(ExitCode::RanksDisagree,
                  "[debug] ranks disagree. Rank 0 is at " + all[0] + "; rank " +
                      std::to_string(rank) + " is at " + all[rank] +
                      ". Every rank must run the same units in the same order.");
    }
  }
}

std::string Runtime::where(const char* operation, const std::string& unit) const {
  return std::string(operation) + " of unit '" + unit + "', in " + name_of(phase_) + " of step " +
         std::to_string(step_) + ", on rank " + std::to_string(mesh_.world().rank()) + " of " +
         std::to_string(mesh_.world().size()) + ": ";
}

}  // namespace sherd::detail
