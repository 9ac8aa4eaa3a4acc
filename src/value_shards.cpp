#include "value_shards.h"

#include "runtime.h"

namespace sherd::detail {

namespace {

ParameterShard shard_of(const UnitState& unit, const UnitParameter& parameter, int rank) {
  const FlatSegment& segment = *unit.segments()[parameter.segment];
  const ParameterPlace& place = segment.layout().places[parameter.place];
  const Range held = segment.layout().held_by(place, rank);
  ParameterShard shard;
  shard.name = parameter.name;
  shard.shape = parameter.tensor.sizes().vec();
  shard.original_dtype = parameter.original_dtype;
  shard.trainable = parameter.trainable;
  shard.begin = held.begin;
  shard.end = held.end;
  const int64_t start = segment.layout().start_in_piece(place, rank);
  shard.value = segment.values().narrow(0, start, held.size());
  return shard;
}

}  // namespace

std::vector<ParameterShard> value_shards(const Runtime& runtime) {
  std::vector<ParameterShard> shards;
  for (const auto& unit : runtime.units()) {
    for (const auto& parameter : unit->parameters()) {
      shards.push_back(shard_of(*unit, parameter, runtime.mesh().shard_rank()));
    }
  }
  return shards;
}

}  // namespace sherd::detail
