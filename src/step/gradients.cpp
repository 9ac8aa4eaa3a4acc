#include "step/gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include "comm/buffers.h"
#include "kernels/shard_math.h"
#include "sherd/error.h"
#include "storage/own_work.h"

namespace sherd::detail {

Gradients::Gradients(Model& model) : model_(model) {
  set_divide_factor(model.mesh.world().size());
}

void Gradients::reduce(UnitState& unit, SegmentGradients& gradients) {
  changed();
  model_.collectives.run(Work::Collective, "reduction", unit.name(), [&] {
    if (!gradients.bound()) {
      gradients.bind();  // every rank reduces, even if it used nothing
    }
    if (accumulates_unsharded(unit)) {
      return gradients.accumulate_unsharded();
    }
    gradients.reduce(scale_);
    reducing_.push_back({&gradients, unit.backward_settings.sums_over_all_ranks()});
    take_ended();
  });
}

bool Gradients::accumulates_unsharded(const UnitState& unit) const {
  // Over one rank, reducing is not communication.
  return !unit.backward_settings.requires_gradient_sync && model_.mesh.shard_size() > 1;
}

void Gradients::take_ended() {
  const auto in_flight = static_cast<size_t>(model_.communicators->shards->reductions_in_flight());
  while (reducing_.size() > in_flight) {
    const Reducing ended = reducing_.front();
    reducing_.pop_front();
    if (std::ranges::find(reducing_, ended.gradients, &Reducing::gradients) != reducing_.end()) {
      continue;  // the unit has been reduced again: the later one ends the sum
    }
    if (!keeps_unsharded_sums_) {
      ended.gradients->free_unsharded_sum();
    }
    if (model_.communicators->replicas == nullptr) {
      finish_sum(*ended.gradients);
    } else if (ended.all_reduce) {
      start_all_reduce(*ended.gradients);
    }
  }
}

void Gradients::finish_sum(SegmentGradients& gradients) const {
  if (when_summed_) {
    gradients.run_all_reduce_hook();
    when_summed_(gradients);
  }
  gradients.put_away();
}

void Gradients::start_all_reduce(SegmentGradients& gradients) {
  const bool is_first = std::ranges::find(all_reducing_, &gradients) == all_reducing_.end();
  gradients.start_all_reduce(is_first);
  if (is_first) {
    all_reducing_.push_back(&gradients);  // gathered once, at the end of backward
  }
}

void Gradients::finish_reductions() {
  model_.collectives.run(Work::Collective, "reduction", "all", [&] {
    model_.communicators->shards->finish_reductions();
    take_ended();
    if (model_.communicators->replicas != nullptr) {
      finish_all_reduces();
    }
    for (const SegmentOfUnit& of : model_.trainable) {
      if (of.unit->backward_settings.sums_over_all_ranks()) {
        of.segment->gradients()->run_all_reduce_hook();
      }
    }
  });
}

void Gradients::finish_all_reduces() {
  for (const SegmentOfUnit& of : model_.trainable) {
    SegmentGradients& gradients = *of.segment->gradients();
    if (of.unit->backward_settings.sums_over_all_ranks() && gradients.awaits_all_reduce()) {
      start_all_reduce(gradients);
    }
  }
  model_.communicators->replicas->finish_reductions();
  std::deque<SegmentGradients*> gathered;
  const auto end_oldest = [&] {
    gathered.front()->wait_sum();
    finish_sum(*gathered.front());
    gathered.pop_front();
  };
  for (SegmentGradients* gradients : std::exchange(all_reducing_, {})) {
    gradients->gather_sum();
    gathered.push_back(gradients);
    if (!gradients->storage().is_resident() && gathered.size() > 1) {
      end_oldest();  // of offloaded ones few are in memory
    }
  }
  while (!gathered.empty()) {
    end_oldest();
  }
}

void Gradients::abandon_reductions() {
  reducing_.clear();
  all_reducing_.clear();
}

void Gradients::check_kept(const char* caller) const {
  if (optimized_in_backward()) {
    throw Error(ExitCode::Usage,
                std::string(caller) +
                    ": the optimizer works in backward, so gradients are gone when it ends: build "
                    "AdamW without in_backward to clip or unscale them.");
  }
}

void Gradients::forget() {
  ++version_;
  for (const SegmentOfUnit& of : model_.trainable) {
    of.segment->gradients()->forget();
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
    of.segment->await_update();  // the update reads them
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
      each.push_back(model_.collectives.run(Work::Local, what, of.unit->name(),
                                            [&] { return of_segment(*of.segment->gradients()); }));
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
    const auto in_use = gradients.storage().read();
    return shard_math::sum_of_powers(gradients.shard(), p);
  };
  const ReduceOp op = std::isinf(p) ? ReduceOp::Max : ReduceOp::Sum;
  return own_work([&] { return over_segments("gradient norm", of, op); });
}

void Gradients::check_reduced(const char* caller) const {
  for (const SegmentOfUnit& of : model_.trainable) {
    const SegmentGradients& gradients = *of.segment->gradients();
    if (gradients.has_unsharded_sum() || gradients.awaits_all_reduce()) {
      throw Error(ExitCode::Usage,
                  std::string(caller) + ": gradients of unit '" + of.unit->name() +
                      "' have not been summed over all ranks: before the last micro-batch of a "
                      "step call set_requires_gradient_sync(true) and "
                      "set_requires_all_reduce(true).");
    }
  }
}

Gradients::Summed Gradients::summed() const {
  Summed all;
  for (const SegmentOfUnit& of : model_.segments) {
    const size_t places = of.segment->has_gradient() ? of.segment->layout().places.size() : 0;
    for (size_t place = 0; place < places; ++place) {
      if (of.unit->parameter_at(*of.segment, place).tensor.requires_grad()) {
        all.emplace_back(of.segment->gradients(), place);
      }
    }
  }
  return all;
}

double Gradients::count_unused() const {
  const auto is_unused = [](const auto& of) { return !of.first->used(of.second); };
  return static_cast<double>(std::ranges::count_if(summed(), is_unused));
}

void Gradients::finish_agreement(double unused, const Reduce& reduce) {
  if (unused > 0) {
    const Summed all = summed();
    std::vector<double> flags;
    for (const auto& [gradients, place] : all) {
      flags.push_back(gradients->used(place) ? 1 : 0);
    }
    reduce(flags);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].first->set_used(all[i].second, flags[i] > 0);
    }
  }
  use_is_agreed_ = true;
}

double Gradients::agree_on_cpu(double value, ReduceOp op) {
  std::array<double, 2> values = {value, use_is_agreed_ ? 0 : count_unused()};
  model_.communicators->shards->all_reduce(values, op);
  if (use_is_agreed_) {
    return values[0];
  }
  if (const auto& replicas = model_.communicators->replicas) {
    replicas->all_reduce({&values[1], 1}, op);
  }
  finish_agreement(values[1], [this](std::span<double> flags) {
    model_.communicators->shards->all_reduce(flags, ReduceOp::Max);
    if (const auto& replicas = model_.communicators->replicas) {
      replicas->all_reduce(flags, ReduceOp::Max);
    }
  });
  return values[0];
}

void Gradients::throw_out_of_step(const std::vector<double>& own) const {
  World& world = model_.mesh.world();
  const std::string mine = c10::str(c10::ArrayRef<double>(own));
  const std::vector<std::string> all = world.all_gather(mine);
  const auto other = std::ranges::find_if(all, [&](const auto& theirs) { return theirs != mine; });
  detail::throw_out_of_step("all-reduce", world.rank(), static_cast<int>(other - all.begin()));
}

void Gradients::agree_between_hosts() {
  if (use_is_agreed_) {
    return;
  }
  World& world = model_.mesh.world();
  std::vector<double> own;
  for (const Communicator* const one : model_.communicators->all()) {
    own.push_back(one->signature());
  }
  std::vector<double> most{count_unused()};
  for (const double signature : own) {
    most.insert(most.end(), {signature, -signature});
  }
  world.all_reduce(most, ReduceOp::Max);
  for (size_t one = 1; one < most.size(); one += 2) {
    if (most[one] != -most[one + 1]) {
      throw_out_of_step(own);  // on every rank
    }
  }
  finish_agreement(most[0],
                   [&](std::span<double> flags) { world.all_reduce(flags, ReduceOp::Max); });
}

at::Tensor Gradients::agree_on_use_with(const at::Tensor& value, ReduceOp op) {
  if (value.is_cpu()) {
    return at::scalar_tensor(agree_on_cpu(value.item<double>(), op), value.options());
  }
  model_.communicators->shards->all_reduce_on_device(value.view({1}), op);
  agree_between_hosts();
  return value;
}

void Gradients::agree_on_use() {
  if (!use_is_agreed_) {
    model_.collectives.run(Work::Collective, "all-reduce of used parameters", "all", [&] {
      if (model_.mesh.world().device().is_cpu()) {
        static_cast<void>(agree_on_cpu(0, ReduceOp::Sum));
      } else {
        agree_between_hosts();
      }
    });
  }
}

}  // namespace sherd::detail
