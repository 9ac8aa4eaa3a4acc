#pragma once
// A small step of each family, planned and real.

#include <algorithm>
#include <string>
#include <vector>

#include "llm/families/family.h"
#include "llm/inputs/batch.h"
#include "llm/inputs/label.h"
#include "llm/plan/memory_plan.h"
#include "llm/plan/meta_run.h"

namespace llm::plan {

inline constexpr std::int64_t kSample = 150, kSamples = 2, kSupervised = 40;

// Heads and vocabulary of no round size.
inline io::HfConfig shape_of(const std::string& family) {
  const bool rotary = family == "llama";
  return {.family = families::find_family(family),
          .shape = {.hidden_size = 136,
                    .feed_forward_size = rotary ? 300 : 544,
                    .layers = 3,
                    .heads = 2,
                    .key_heads = rotary ? 1 : 2,
                    .head_size = 68,
                    .vocab_size = 3001,
                    .context_length = 512,
                    .norm_epsilon = 1e-5,
                    .tied_embedding = !rotary,
                    .rope = rotary ? std::optional(model::RopeConfig{}) : std::nullopt},
          .dtype = std::nullopt};
}

inline PlannedRun planned_run(const std::string& family, int ranks, sherd::Strategy strategy) {
  const MicroBatch batch{std::vector<std::int64_t>(kSamples, kSample),
                         std::vector<std::int64_t>(kSamples, kSupervised)};
  return {.model = shape_of(family),
          .ranks = {.size = ranks, .local_size = ranks},
          .sharding = {.strategy = strategy},
          .micro_batches = {batch}};
}

/// The one of a name.
inline const PhasePlan& phase(const MemoryPlan& plan, const std::string& name) {
  return *std::find_if(plan.phases.begin(), plan.phases.end(),
                       [&](const PhasePlan& one) { return one.name == name; });
}

inline inputs::Batch real_batch() {
  inputs::Batch batch;
  for (std::int64_t sample = 0; sample < kSamples; ++sample) {
    for (std::int64_t t = 0; t < kSample; ++t) {
      batch.input_ids.push_back(t);
      batch.labels.push_back(t < kSample - kSupervised ? inputs::kUnsupervised : t);
    }
    batch.bounds.push_back(kSample * (sample + 1));
  }
  return batch;
}

}  // namespace llm::plan
