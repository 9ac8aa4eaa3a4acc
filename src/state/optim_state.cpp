#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "rendezvous/agree.h"
#include "sherd/state_dict.h"
#include "state/entries.h"
#include "state/transfer.h"
#include "step/step.h"

namespace sherd {

namespace {

// A parameter's two moments, each an entry with the parameter's shape and sharding.
struct MomentEntries {
  detail::StateEntry exp_avg;
  detail::StateEntry exp_avg_sq;
  [[nodiscard]] const std::string& name() const { return exp_avg.name; }
};

std::vector<MomentEntries> moment_entries(ShardedModule& model, const AdamW& optimizer) {
  std::map<std::string, OptimizerShard> moments;
  for (OptimizerShard& moment : optimizer.state_shards()) {
    moments.emplace(moment.parameter, std::move(moment));
  }
  std::vector<MomentEntries> entries;
  for (const detail::StateEntry& parameter : detail::state_entries(model)) {
    const auto found = moments.find(parameter.name);
    if (found != moments.end() && !parameter.is_buffer()) {
      MomentEntries& entry = entries.emplace_back(MomentEntries{parameter, parameter});
      const OptimizerShard& shard = found->second;
      entry.exp_avg.mine = detail::ShardValues(shard.tensors.at("exp_avg")).resting(shard.use);
      entry.exp_avg_sq.mine =
          detail::ShardValues(shard.tensors.at("exp_avg_sq")).resting(shard.use);
    }
  }
  return entries;
}

std::string fault_of(const MomentEntries& entry, const OptimState& state) {
  for (const at::Tensor& moment : {state.exp_avg, state.exp_avg_sq}) {
    const std::string fault = entry.exp_avg.mismatch(moment);
    if (!fault.empty()) {
      return "a moment of " + fault;
    }
  }
  return "";
}

// Throws, listing all faults; returns the steps of each entry as text.
std::string check_dict(const OptimStateDict& dict, const std::vector<MomentEntries>& entries) {
  std::string faults;
  std::set<std::string> known;
  std::ostringstream steps;
  for (const MomentEntries& entry : entries) {
    known.insert(entry.name());
    const OptimState* state = dict.find(entry.name());
    if (state == nullptr) {
      faults += "\n  the state of parameter '" + entry.name() + "' is missing";
      continue;
    }
    const std::string fault = fault_of(entry, *state);
    faults += fault.empty() ? "" : "\n  " + fault;
    if (state->step < 0) {
      faults += "\n  '" + entry.name() + "' has done " + std::to_string(state->step) + " steps";
    }
    steps << state->step << ' ';
  }
  for (const auto& item : dict) {
    if (known.count(item.key()) == 0) {
      faults += "\n  '" + item.key() + "' is not a trainable parameter of the model";
    }
  }
  if (!faults.empty()) {
    throw Error(ExitCode::BadData, "the state is not that of this optimizer:" + faults);
  }
  return steps.str();
}

void scatter_from_rank0(World& world, const at::Tensor& whole, detail::StateEntry& entry) {
  const at::Tensor flat = whole.defined() ? whole.detach().reshape({-1}) : at::Tensor();
  detail::broadcast_elements(
      world, 0, flat, entry.numel(), entry.mine.dtype(),
      [&](int64_t first, const at::Tensor& values) { entry.write(first, values); });
}

// Sets the steps of each parameter; the optimizer has done the most of any.
void set_steps(AdamW& optimizer, const std::vector<MomentEntries>& entries,
               const std::string& steps_of_entries) {
  std::istringstream text(steps_of_entries);
  std::vector<int64_t> steps(entries.size());
  for (int64_t& count : steps) {
    text >> count;
  }
  optimizer.set_steps_done(steps.empty() ? 0 : *std::max_element(steps.begin(), steps.end()));
  for (size_t i = 0; i < entries.size(); ++i) {
    optimizer.set_steps_done(entries[i].name(), steps[i]);
  }
}

}  // namespace

void for_each_full_optim_state(
    ShardedModule& model, const AdamW& optimizer,
    const std::function<void(const std::string& name, const OptimState&)>& visit, bool rank0_only) {
  detail::engine_of(model).step.check_whole("full_optim_state_dict");
  World& world = model.world();
  const bool wanted = !rank0_only || world.rank() == 0;
  const std::vector<int> senders = detail::senders(model);
  detail::Visits visits(world, "[for_each_full_optim_state] the visitor failed");
  for (const MomentEntries& entry : moment_entries(model, optimizer)) {
    const auto whole = [&](const detail::StateEntry& moment) {
      return detail::collect(world, senders, moment, moment.mine.dtype(), rank0_only);
    };
    const at::Tensor exp_avg = whole(entry.exp_avg);
    const OptimState state{exp_avg, whole(entry.exp_avg_sq), optimizer.steps_done(entry.name())};
    const auto element = static_cast<int64_t>(c10::elementSize(entry.exp_avg.mine.dtype()));
    visits.add(2 * entry.exp_avg.numel() * element, [&] {
      if (wanted) {
        visit(entry.name(), state);
      }
    });
  }
  visits.finish();
}

OptimStateDict full_optim_state_dict(ShardedModule& model, const AdamW& optimizer,
                                     bool rank0_only) {
  OptimStateDict dict;
  for_each_full_optim_state(
      model, optimizer,
      [&](const std::string& name, const OptimState& state) { dict.insert(name, state); },
      rank0_only);
  return dict;
}

void load_full_optim_state_dict(ShardedModule& model, AdamW& optimizer,
                                const OptimStateDict& dict) {
  detail::engine_of(model).step.require_between_steps("load_full_optim_state_dict");
  World& world = model.world();
  std::vector<MomentEntries> entries = moment_entries(model, optimizer);
  const std::vector<std::string> answers =
      detail::agree(world, "[load_full_optim_state_dict] loading failed",
                    [&] { return world.rank() == 0 ? check_dict(dict, entries) : std::string(); });
  detail::engine_of(model).step.writing_begins(detail::State::Optimizer,
                                               "load_full_optim_state_dict");
  for (MomentEntries& entry : entries) {
    const OptimState none;
    const OptimState& state = world.rank() == 0 ? dict[entry.name()] : none;
    scatter_from_rank0(world, state.exp_avg, entry.exp_avg);
    scatter_from_rank0(world, state.exp_avg_sq, entry.exp_avg_sq);
  }
  set_steps(optimizer, entries, answers[0]);
  detail::rest(detail::engine_of(model).model);
  detail::engine_of(model).step.writing_ended(detail::State::Optimizer);
}

}  // namespace sherd
