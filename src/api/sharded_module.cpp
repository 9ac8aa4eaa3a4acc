#include "sherd/sharded_module.h"

#include <map>
#include <numeric>
#include <utility>

#include "sherd/error.h"
#include "sherd/unit.h"
#include "step/step.h"
#include "unit/model.h"

namespace sherd {

detail::Engine& detail::engine_of(const ShardedModule& model) {
  return *model.engine_;
}

const World& ShardedModule::world() const {
  return engine_->model.mesh.world();
}

World& ShardedModule::world() {
  return engine_->model.mesh.world();
}

namespace {

// A writable view of the gradient; a copy if it is stored elsewhere.
at::Tensor shown_gradient(const detail::HeldPart& held) {
  detail::SegmentGradients& gradients = *held.segment.gradients();
  if (!gradients.storage().is_resident()) {
    const auto in_use = gradients.storage().read();
    return held.of(gradients.shard()).clone();
  }
  gradients.expose();
  return held.of(gradients.shard());
}

}  // namespace

std::vector<ParameterShard> ShardedModule::parameter_shards() const {
  engine_->step.leave_failed_backward();
  engine_->step.gradients().apply_pending_factor();
  std::vector<ParameterShard> shards = detail::value_shards(engine_->model);
  auto shard = shards.begin();
  detail::for_each_held_part(engine_->model,
                             [&](const auto&, const auto&, const detail::HeldPart& held) {
                               if (held.segment.has_gradient()) {
                                 shard->gradient = shown_gradient(held);
                               }
                               ++shard;
                             });
  return shards;
}

std::vector<std::pair<std::string, std::string>> ShardedModule::tied_names() const {
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& unit : engine_->model.units) {
    for (const auto& parameter : unit->parameters()) {
      for (const auto& alias : parameter.aliases) {
        names.emplace_back(alias, parameter.name);
      }
    }
  }
  return names;
}

void ShardedModule::publish() {
  for (const detail::SegmentOfUnit& of : engine_->model.segments) {
    if (of.segment->values().rests()) {
      throw Error(ExitCode::Usage,
                  "[publish] values of unit '" + of.unit->name() + "' are stored on " +
                      (of.segment->has_values_in_file() ? "a disk" : "the host") +
                      " (ShardOptions::offload), and ParameterShard::value is a copy of them: "
                      "write them by initialize(), load_safetensors(), "
                      "load_from_rank0(), load_full_state_dict() or with_full_parameters().");
    }
  }
  engine_->step.reshard_all();  // may refuse, before anything is torn
  engine_->step.writing_begins(detail::State::Values, "publish");
  engine_->step.publish_values();
  engine_->step.writing_ended(detail::State::Values);
}

void ShardedModule::zero_grad() {
  engine_->step.zero_grad();
}

void ShardedModule::set_gradient_divide_factor(double factor) {
  engine_->step.gradients().set_divide_factor(factor);
}

namespace {

std::vector<detail::UnitState*> chosen(detail::Model& model,
                                       const ShardedModule::UnitFilter& units) {
  std::vector<detail::UnitState*> found;
  for (const auto& unit : model.units) {
    if (!units || units(unit->name())) {
      found.push_back(unit.get());
    }
  }
  return found;
}

void set_backward(detail::Model& model, bool detail::BackwardSettings::*setting, bool value,
                  const ShardedModule::UnitFilter& units) {
  for (detail::UnitState* unit : chosen(model, units)) {
    unit->backward_settings.*setting = value;
  }
}

int64_t elements_of(const detail::SegmentLayout& layout) {
  return std::accumulate(
      layout.places.begin(), layout.places.end(), int64_t{0},
      [](int64_t sum, const detail::ParameterPlace& place) { return sum + place.numel; });
}

/// Elements by dtype.
using DtypeCounts = std::map<std::string, int64_t>;

std::string described(const DtypeCounts& counts) {
  std::string text;
  for (const auto& [dtype, numel] : counts) {
    text += (text.empty() ? "" : ", ") + dtype;
    if (counts.size() > 1) {
      text += " (" + std::to_string(numel) + " elements)";
    }
  }
  return text.empty() ? "none" : text;
}

const char* name_of_masters(const detail::FlatSegment& segment) {
  switch (segment.master_format()) {
    case Master::Float32:
      return "Float";
    case Master::Split:
      return "Float in two halves";
    case Master::BFloat16:
      return "BFloat16";
  }
  return "";
}

std::string plan_line(const detail::UnitState& unit, const detail::FlatSegment& segment) {
  const detail::SegmentLayout& layout = segment.layout();
  std::string line = unit.name();
  line += ": " + std::to_string(layout.places.size()) + " parameters, " +
          std::to_string(elements_of(layout)) + " elements, " + c10::toString(layout.dtype) +
          (layout.trainable ? "" : ", frozen") + ", " + std::to_string(layout.bytes()) +
          " bytes gathered, " + std::to_string(layout.bytes() / layout.world_size) +
          " bytes per rank";
  if (segment.has_separate_master()) {
    line += " and " + std::to_string(layout.shard_numel * 4) + " of fp32 master";
  } else if (segment.has_split_master()) {
    line += " and " + std::to_string(layout.shard_numel * 2) + " of the masters' low halves";
  }
  return line + (unit.settings().checkpoint_activations ? ", activations checkpointed" : "") + "\n";
}

}  // namespace

void ShardedModule::set_requires_gradient_sync(bool requires_sync, const UnitFilter& units) {
  set_backward(engine_->model, &detail::BackwardSettings::requires_gradient_sync, requires_sync,
               units);
}

void ShardedModule::set_requires_all_reduce(bool requires_all_reduce, const UnitFilter& units) {
  set_backward(engine_->model, &detail::BackwardSettings::requires_all_reduce, requires_all_reduce,
               units);
}

void ShardedModule::set_all_reduce_hook(const AllReduceHook& hook, const UnitFilter& units) {
  for (const detail::UnitState* unit : chosen(engine_->model, units)) {
    for (const auto& segment : unit->segments()) {
      if (segment->gradients() != nullptr && hook) {
        segment->gradients()->set_all_reduce_hook(
            [hook, name = unit->name()](const at::Tensor& shard) { hook(name, shard); });
      } else if (segment->gradients() != nullptr) {
        segment->gradients()->set_all_reduce_hook({});
      }
    }
  }
}

void ShardedModule::set_reshard_after_backward(bool reshard, const UnitFilter& units) {
  set_backward(engine_->model, &detail::BackwardSettings::reshard_after_backward, reshard, units);
  engine_->step.limit_gathered();
}

void ShardedModule::set_is_last_backward(bool is_last) {
  if (engine_->model.mesh.shard_size() == 1) {
    return;  // a shard is the whole
  }
  const Placements between = placements_of(engine_->model.options.strategy);
  if (between.gradients == Placement::Partial) {
    set_requires_gradient_sync(is_last);
  }
  if (between.parameters_after_backward == Placement::Replicate) {
    set_reshard_after_backward(is_last);
  }
}

void ShardedModule::set_unshard_in_backward(bool unshard, const UnitFilter& units) {
  set_backward(engine_->model, &detail::BackwardSettings::unshard_in_backward, unshard, units);
}

void ShardedModule::set_reshard_after_forward(bool reshard, const UnitFilter& units) {
  engine_->step.require_between_steps("set_reshard_after_forward");
  const int size = engine_->model.options.reshard_after_forward_size;
  if (size > 0) {
    throw Error(
        ExitCode::Usage,
        "[set_reshard_after_forward] the model was sharded with reshard_after_forward_size " +
            std::to_string(size) +
            ", for which shards were laid out then: choose by UnitOptions, or shard without it.");
  }
  for (detail::UnitState* unit : chosen(engine_->model, units)) {
    unit->set_reshard_after_forward(reshard);
  }
  engine_->step.limit_gathered();
}

void ShardedModule::unshard(const UnitFilter& units) {
  engine_->step.unshard(chosen(engine_->model, units));
}

void ShardedModule::reshard(const UnitFilter& units) {
  engine_->step.reshard(chosen(engine_->model, units));
}

std::string ShardedModule::plan() const {
  std::string text;
  for (const detail::SegmentOfUnit& of : engine_->model.segments) {
    text += plan_line(*of.unit, *of.segment);
  }
  return text;
}

std::string ShardedModule::dtypes() const {
  DtypeCounts parameters;
  DtypeCounts sums;
  DtypeCounts masters;
  for (const detail::SegmentOfUnit& of : engine_->model.segments) {
    const detail::SegmentLayout& layout = of.segment->layout();
    const int64_t numel = elements_of(layout);
    parameters[c10::toString(layout.dtype)] += numel;
    if (layout.trainable) {
      sums[c10::toString(layout.reduce_dtype)] += numel;
      masters[name_of_masters(*of.segment)] += numel;
    }
  }
  return "parameters and exchanged gradients " + described(parameters) + "; sums of gradients " +
         described(sums) + "; masters " + described(masters);
}

const MemoryLedger& ShardedModule::memory() const {
  return *engine_->model.ledger;
}

std::string ShardedModule::offload_transfers() const {
  std::string text;
  for (const detail::FileStore* store : engine_->model.offload->files()) {
    const std::string one = store->description();
    text += text.find(one) != std::string::npos ? "" : (text.empty() ? "" : "; ") + one;
  }
  return text;
}

int64_t ShardedModule::offload_slot_bytes() const {
  return engine_->model.offload->most_in_memory_bytes();
}

int64_t ShardedModule::offload_page_bytes() const {
  return engine_->model.offload->most_page_bytes();
}

int64_t ShardedModule::planned_peak_bytes(const MicroBatches& micro_batches) const {
  return detail::planned_peak_bytes(engine_->model, micro_batches);
}

void ShardedModule::reset_peak_memory() {
  engine_->model.ledger->reset_peak();
}

Communicator::Counts ShardedModule::counts() const {
  return engine_->model.communicators->counts();
}

detail::ShardedUnit ShardedModule::root_unit() const {
  return {std::shared_ptr<detail::Step>(engine_, &engine_->step),
          engine_->model.units.front().get()};
}

}  // namespace sherd
