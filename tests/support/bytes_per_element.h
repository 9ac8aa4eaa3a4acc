#pragma once
// What a rank holds of a model between steps, by the element that it shards.

#include "sherd/fully_shard.h"
#include "sherd/optim.h"
#include "tests/support/small_net.h"

namespace sherd::test {

/// After a backward: weights, masters, moments and gradients of what travels in bf16.
inline double bytes_per_element(World world, const ShardOptions& options,
                                c10::ScalarType moments_dtype) {
  auto model = fully_shard(make_net(), Mesh::shard(world), options);
  const AdamW optimizer(model, {}, {}, {.moments_dtype = moments_dtype});
  model(make_example(0).x).sum().backward();
  const MemoryLedger& held = model.memory();
  return 2.0 *
         static_cast<double>(held.sharded_state_bytes() + held.bytes(MemoryKind::GradientShard)) /
         static_cast<double>(held.bytes(MemoryKind::TravellingShard));
}

}  // namespace sherd::test
