#pragma once
// What a handle of a sharded model holds: the data, and the step that works on them.

#include <utility>
#include <vector>

#include "step/step.h"

namespace sherd::detail {

struct Engine {
  /// As Model, with travelling shards written. Collective.
  Engine(Mesh mesh, ShardOptions options, std::vector<UnitPlan> plans,
         std::vector<ModelBuffer> buffers, const StorageFactory* factory)
      : model(std::move(mesh), std::move(options), std::move(plans), std::move(buffers), factory),
        step(model) {}

  Model model;
  Step step;
};

}  // namespace sherd::detail
