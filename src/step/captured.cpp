// Micro-batches that are CUDA graphs: how a capture begins, and what a launch leaves on the host.

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>

#include <torch/csrc/autograd/variable.h>

#include "sherd/error.h"
#include "step/step.h"

namespace sherd::detail {

namespace {

[[noreturn]] void refuse_capture(const std::string& what, const std::string& instead) {
  throw Error(ExitCode::Usage, "[MicroBatchGraphs] " + what +
                                   ", and a graph repeats what the device does, not the host: " +
                                   instead + ", or run micro-batches without graphs.");
}

void refuse_unit(const UnitState& unit, bool has_replicas) {
  const BackwardSettings& settings = unit.backward_settings;
  if (!settings.reshard_after_backward) {
    refuse_capture("unit '" + unit.name() + "' stays gathered after backward",
                   "leave set_reshard_after_backward at true");
  }
  if (has_replicas && !settings.requires_all_reduce) {
    refuse_capture("gradients of unit '" + unit.name() + "' are summed over the replicas later",
                   "leave set_requires_all_reduce at true");
  }
  for (const auto& segment : unit.segments()) {
    const SegmentGradients* gradients = segment->gradients();
    if (gradients == nullptr) {
      continue;
    }
    if (gradients->has_all_reduce_hook()) {
      refuse_capture("unit '" + unit.name() + "' has an all-reduce hook", "unset it");
    }
    if (gradients->awaits_all_reduce()) {
      refuse_capture("gradients of unit '" + unit.name() + "' await their sum over the replicas",
                     "run the micro-batch that sums them, or zero_grad(), first");
    }
  }
}

// [Note: Accumulators and streams]
// Autograd accumulates a parameter's gradient on the stream of the forward that made the
// parameter's accumulator, which lives as long as a graph that holds it. An accumulator that
// outlives its micro-batch would bring the host's stream into a capture, or a capture's stream into
// later work. Autograd's own thread frees graphs, a moment after backward has returned.
bool are_graphs_freed(const Model& model) {
  constexpr std::chrono::seconds kMoment{1};
  const auto is_held = [](const UnitParameter& parameter) {
    return torch::autograd::impl::try_get_grad_accumulator(parameter.tensor) != nullptr;
  };
  const auto end = std::chrono::steady_clock::now() + kMoment;
  for (const auto& unit : model.units) {
    while (std::ranges::any_of(unit->parameters(), is_held)) {
      if (std::chrono::steady_clock::now() > end) {
        return false;
      }
      std::this_thread::yield();
    }
  }
  return true;
}

void await_freed_graphs(const Model& model) {
  if (!are_graphs_freed(model)) {
    throw Error(ExitCode::Usage,
                "something still holds the graph of a forward, such as its loss, or what detach() "
                "made of that: let go of it.");
  }
}

}  // namespace

void Step::begin_captured() {
  require_between_steps("MicroBatchGraphs::run");
  check_not_torn("MicroBatchGraphs::run");
  require_values(model_, "MicroBatchGraphs::run");
  if (gradients_.optimized_in_backward()) {
    refuse_capture("the optimizer works in backward", "build AdamW without in_backward");
  }
  if (masters_handed_out()) {
    refuse_capture("an optimizer of LibTorch may write the parameters at any time",
                   "use sherd::AdamW");
  }
  if (!is_idle()) {
    refuse_capture("a forward waits for its backward", "run that, or let go of its outputs, first");
  }
  for (const auto& unit : model_.units) {
    refuse_unit(*unit, model_.communicators->replicas != nullptr);
  }
  gradients_.keep_unsharded_sums();
  gradients_.apply_pending_factor();
  reshard_all();
  for (const SegmentOfUnit& of : model_.segments) {
    of.segment->await_update();
  }
}

std::string Step::capture_key() const {
  std::string key = std::to_string(gradients_.scale());
  for (const auto& unit : model_.units) {
    const BackwardSettings& settings = unit->backward_settings;
    key += '/';
    for (const bool is_set : {settings.requires_gradient_sync, settings.unshard_in_backward,
                              unit->settings().reshard_after_forward}) {
      key += is_set ? '1' : '0';
    }
    for (const UnitParameter& parameter : unit->parameters()) {
      key += parameter.tensor.requires_grad() ? 't' : 'f';
    }
  }
  for (const SegmentOfUnit& of : model_.trainable) {
    const SegmentGradients::Known& known = of.segment->gradients()->known();
    key += known.has_sum ? 's' : '-';
    key += known.has_unsharded_sum ? 'u' : '-';
  }
  return key;
}

CapturedMicroBatch Step::capture(const c10::Stream& stream, const DeviceGraph* beside,
                                 const std::function<void()>& micro_batch) {
  await_freed_graphs(model_);
  std::vector<SegmentGradients::Known> before;
  for (const SegmentOfUnit& of : model_.trainable) {
    SegmentGradients::Known alone = before.emplace_back(of.segment->gradients()->known());
    alone.used.assign(alone.used.size(), false);
    of.segment->gradients()->set_known(std::move(alone));
  }
  const std::vector<Communicator*> communicators = model_.communicators->all();
  std::vector<Communicator::Counts> counts;
  for (const Communicator* const one : communicators) {
    counts.push_back(one->counts());
  }
  CapturedMicroBatch captured;
  std::exception_ptr failure;
  try {
    captured.graph.emplace(stream, beside, [&] {
      std::ranges::for_each(communicators, &Communicator::begin_capture);
      model_.arena.free_from_now();
      micro_batch();
      reshard_all();
      std::ranges::for_each(communicators, &Communicator::end_capture);
    });
    await_freed_graphs(model_);
  } catch (...) {
    failure = std::current_exception();
    backward_ = Backward::Failed;
    abandon();
    static_cast<void>(are_graphs_freed(model_));
  }
  model_.arena.free_from_now();
  for (size_t i = 0; i < before.size(); ++i) {
    SegmentGradients& gradients = *model_.trainable[i].segment->gradients();
    captured.after.push_back(gradients.known());
    gradients.set_known(std::move(before[i]));
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    const Communicator::Counts made = communicators[i]->counts().since(counts[i]);
    communicators[i]->count_again(Communicator::Counts().since(made));  // none of it was done
    captured.counts.push_back(made);
  }
  captured.order = schedule_.begun();
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
  return captured;
}

void Step::launch(const CapturedMicroBatch& captured) {
  model_.collectives.set_phase(Phase::Backward);
  captured.graph->launch();
  model_.arena.free_from_now();
  for (size_t i = 0; i < captured.after.size(); ++i) {
    SegmentGradients& gradients = *model_.trainable[i].segment->gradients();
    SegmentGradients::Known after = captured.after[i];
    const std::vector<bool>& used_before = gradients.known().used;
    std::transform(after.used.begin(), after.used.end(), used_before.begin(), after.used.begin(),
                   std::logical_or<>());
    gradients.set_known(std::move(after));
  }
  gradients_.changed();
  const std::vector<Communicator*> communicators = model_.communicators->all();
  for (size_t i = 0; i < communicators.size(); ++i) {
    communicators[i]->count_again(captured.counts[i]);
  }
}

}  // namespace sherd::detail
