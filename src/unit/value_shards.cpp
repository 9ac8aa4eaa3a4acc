#include "unit/value_shards.h"

namespace sherd::detail {

std::vector<ParameterShard> value_shards(const Model& model) {
  std::vector<ParameterShard> shards;
  for_each_held_part(model,
                     [&](const UnitState&, const UnitParameter& parameter, const HeldPart& held) {
                       ParameterShard& shard = shards.emplace_back();
                       shard.name = parameter.name;
                       shard.shape = parameter.tensor.sizes().vec();
                       shard.original_dtype = parameter.original_dtype;
                       shard.trainable = parameter.trainable;
                       shard.begin = held.range.begin;
                       shard.end = held.range.end;
                       const ShardValues values = held.values();
                       shard.value = values.read();
                       if (values.in_place().defined()) {
                         held.segment.expose();
                       }
                     });
  return shards;
}

}  // namespace sherd::detail
