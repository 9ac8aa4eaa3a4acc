#pragma once
// The plan of a sharded model, short enough for a model of eighty blocks.

#include <string>

namespace llm::track {

/// Joins neighbouring lines of sherd::ShardedModule::plan() that differ in their names only:
/// `layers.0 to layers.31 (32 units), each: 9 parameters, …`.
[[nodiscard]] std::string short_plan(const std::string& plan);

}  // namespace llm::track
