#pragma once
// A plan of memory as people read it: what a rank holds by what it is for, phase by phase.

#include <cstdint>
#include <string>

#include "llm/plan/memory_plan.h"

namespace llm::plan {

/// What a rank holds memory for.
enum class Held {
  Parameters,  ///< its shards of what computes
  Masters,     ///< their float32 masters, which are the parameters where those are float32
  Moments,
  Gradients,  ///< sums of its own shards
  GatheredUnits,
  ExchangedGradients,  ///< whole ones on their way to their shards
  Offloaded,           ///< what is in memory of what rests on a disk or the host
  Activations,         ///< and all else that operators hold
  Libraries,
  Workspaces,  ///< of cuBLAS
  Graphs,      ///< of micro-batches
  Kept,        ///< freed, and kept by the allocator
};

/// Of an item of a phase.
[[nodiscard]] Held held_for(const std::string& item);
/// How parameters lie, as the configuration says it.
struct Weights {
  std::string dtype;           ///< "bfloat16"
  bool split_masters = false;  ///< as sherd::Master::Split
};

/// "parameters, bfloat16".
[[nodiscard]] std::string name_of(Held held, const Weights& weights);
[[nodiscard]] std::int64_t bytes_of(const PhasePlan& phase, Held held);
/// For what it holds most of what is in use.
[[nodiscard]] Held largest_of(const PhasePlan& phase);
/// "linear 1.2 GiB, rotary 0.3 GiB": the operators that hold most of its activations; "" where it
/// has none to speak of.
[[nodiscard]] std::string largest_activations(const PhasePlan& phase);

/// A line for each of Held that is there, a column for each phase, and the unit in the first line.
/// Ends without a line's end.
[[nodiscard]] std::string memory_table(const MemoryPlan& plan, const Weights& weights);

}  // namespace llm::plan
