#include "sherd/fully_shard.h"

#include <utility>

#include "runtime.h"

namespace sherd {

namespace {

ParameterShard shard_of(detail::UnitState& unit, const detail::UnitParameter& parameter, int rank) {
  const detail::FlatSegment& segment = *unit.segments()[parameter.segment];
  const detail::ParameterPlace& place = segment.layout().places[parameter.place];
  const detail::Range held = segment.layout().held_by(place, rank);
  ParameterShard shard;
  shard.name = parameter.name;
  shard.shape = parameter.tensor.sizes().vec();
  shard.original_dtype = parameter.original_dtype;
  shard.trainable = parameter.trainable;
  shard.begin = held.begin;
  shard.end = held.end;
  const int64_t start =
      held.size() == 0 ? 0 : place.offset + held.begin - rank * segment.layout().shard_numel;
  const at::Tensor& flat = parameter.trainable ? segment.master() : segment.travelling();
  shard.value = flat.narrow(0, start, held.size());
  if (segment.has_gradient()) {
    shard.gradient = segment.gradient().narrow(0, start, held.size());
  }
  return shard;
}

}  // namespace

const World& ShardedModule::world() const {
  return runtime_->mesh().world();
}

World& ShardedModule::world() {
  return runtime_->mesh().world();
}

std::vector<ParameterShard> ShardedModule::parameter_shards() const {
  runtime_->apply_gradient_factor();
  std::vector<ParameterShard> shards;
  for (const auto& unit : runtime_->units()) {
    for (const auto& parameter : unit->parameters()) {
      shards.push_back(shard_of(*unit, parameter, world().rank()));
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

std::string ShardedModule::plan() const {
  std::string text;
  for (const auto& unit : runtime_->units()) {
    int64_t numel = 0;
    for (const auto& parameter : unit->parameters()) {
      numel += parameter.tensor.numel();
    }
    text += unit->name() + ": " + std::to_string(unit->parameters().size()) + " parameters, " +
            std::to_string(numel) + " elements, " + std::to_string(unit->gathered_bytes()) +
            " bytes gathered, " + std::to_string(unit->gathered_bytes() / world().size()) +
            " bytes a rank\n";
  }
  return text;
}

const MemoryLedger& ShardedModule::memory() const {
  return *runtime_->ledger();
}

void ShardedModule::reset_peak_memory() {
  runtime_->ledger()->reset_peak();
}

const Communicator::Counts& ShardedModule::counts() const {
  return runtime_->communicator().counts();
}

detail::UnitState* ShardedModule::root_unit() const {
  return runtime_->units().front().get();
}

}  // namespace sherd
