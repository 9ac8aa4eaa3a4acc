#include "sherd/fully_shard.h"

#include <map>
#include <utility>

#include "memory_plan.h"
#include "runtime.h"
#include "value_shards.h"

namespace sherd {

const World& ShardedModule::world() const {
  return runtime_->mesh().world();
}

World& ShardedModule::world() {
  return runtime_->mesh().world();
}

std::vector<ParameterShard> ShardedModule::parameter_shards() const {
  runtime_->leave_failed_backward();
  runtime_->apply_gradient_factor();
  std::vector<ParameterShard> shards = detail::value_shards(*runtime_);
  auto shard = shards.begin();
  for (const auto& unit : runtime_->units()) {
    for (const auto& parameter : unit->parameters()) {
      const detail::FlatSegment& segment = *unit->segments()[parameter.segment];
      if (segment.has_gradient()) {
        segment.gradients()->show();
        const int64_t start = segment.layout().start_in_piece(
            segment.layout().places[parameter.place], runtime_->mesh().shard_rank());
        shard->gradient = segment.gradient().narrow(0, start, shard->value.numel());
      }
      ++shard;
    }
  }
  return shards;
}

std::vector<std::pair<std::string, std::string>> ShardedModule::tied_names() const {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& unit : runtime_->units()) {
    for (const auto& parameter : unit->parameters()) {
      for (const auto& alias : parameter.aliases) {
        names.emplace_back(alias, parameter.name);
      }
    }
  }
  return names;
}

void ShardedModule::publish() {
  for (const auto& unit : runtime_->units()) {
    for (auto& parameter : unit->parameters()) {
      parameter.has_values = true;
    }
  }
  runtime_->publish();
}

void ShardedModule::zero_grad() {
  runtime_->zero_grad();
}

void ShardedModule::set_gradient_divide_factor(double factor) {
  runtime_->set_gradient_divide_factor(factor);
}

namespace {

template <class T>
void set_backward(detail::Runtime& runtime, T detail::BackwardSettings::*setting, T value,
                  const ShardedModule::UnitFilter& units) {
  for (const auto& unit : runtime.units()) {
    if (!units || units(unit->name())) {
      unit->backward_settings.*setting = value;
    }
  }
}

std::string plan_line(const detail::UnitState& unit, const detail::FlatSegment& segment) {
  const detail::SegmentLayout& layout = segment.layout();
  int64_t numel = 0;
  for (const auto& place : layout.places) {
    numel += place.numel;
  }
  std::string line = unit.name();
  line += ": " + std::to_string(layout.places.size()) + " parameters, " + std::to_string(numel) +
          " elements, " + c10::toString(layout.dtype) + (layout.trainable ? "" : ", frozen") +
          ", " + std::to_string(layout.bytes()) + " bytes gathered, " +
          std::to_string(layout.bytes() / layout.world_size) + " bytes a rank";
  if (segment.has_separate_master()) {
    line += " and " + std::to_string(layout.shard_numel * 4) + " of fp32 master";
  }
  return line + (unit.settings().checkpoint_activations ? ", activations checkpointed" : "") + "\n";
}

}  // namespace

void ShardedModule::set_requires_gradient_sync(bool requires_sync, const UnitFilter& units) {
  set_backward(*runtime_, &detail::BackwardSettings::requires_gradient_sync, requires_sync, units);
}

void ShardedModule::set_requires_all_reduce(bool requires_all_reduce, const UnitFilter& units) {
  set_backward(*runtime_, &detail::BackwardSettings::requires_all_reduce, requires_all_reduce,
               units);
}

void ShardedModule::set_reshard_after_backward(bool reshard, const UnitFilter& units) {
  set_backward(*runtime_, &detail::BackwardSettings::reshard_after_backward, reshard, units);
  runtime_->limit_gathered();
}

std::string ShardedModule::plan() const {
  std::string text;
  for (const auto& unit : runtime_->units()) {
    for (const auto& segment : unit->segments()) {
      text += plan_line(*unit, *segment);
    }
  }
  return text;
}

std::string ShardedModule::dtypes() const {
  std::map<std::string, int64_t> elements;  // by dtype
  for (const auto& unit : runtime_->units()) {
    for (const auto& segment : unit->segments()) {
      for (const auto& place : segment->layout().places) {
        elements[c10::toString(segment->layout().dtype)] += place.numel;
      }
    }
  }
  std::string parameters;
  for (const auto& [dtype, numel] : elements) {
    parameters += (parameters.empty() ? "" : ", ") + dtype;
    if (elements.size() > 1) {
      parameters += " (" + std::to_string(numel) + " elements)";
    }
  }
  return "parameters and travelling gradients " + parameters +
         "; sums of gradients Float; masters Float";
}

const MemoryLedger& ShardedModule::memory() const {
  return *runtime_->ledger();
}

int64_t ShardedModule::planned_peak_bytes(const MicroBatches& micro_batches) const {
  return detail::planned_peak_bytes(*runtime_, micro_batches);
}

void ShardedModule::reset_peak_memory() {
  runtime_->ledger()->reset_peak();
}

Communicator::Counts ShardedModule::counts() const {
  return runtime_->communicators().counts();
}

detail::UnitState* ShardedModule::root_unit() const {
  return runtime_->units().front().get();
}

}  // namespace sherd
