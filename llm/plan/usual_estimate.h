#pragma once
// What is usually estimated of large Llamas by bytes a parameter, beside what is planned.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llm/io/hf_config.h"
#include "llm/plan/memory_plan.h"
#include "llm/plan/step_time.h"

namespace llm::plan {

/// The figures of common guides to sharded training, as they give them: in 10^9 bytes, of all GPUs
/// together; "" for what they do not give.
struct UsualEstimate {
  std::string model;  ///< "Llama 3 8B"
  std::string parameters;
  std::string gradients;
  std::string moments;
  std::string narrow_moments;  ///< of 16 bits
  std::string all;
  std::string a_gpu;         ///< of 8
  std::string a_gpu_narrow;  ///< the same with moments of 16 bits
  std::string activations;   ///< of a GPU, checkpointed
  std::string tokens_per_second;
};

/// Of the shapes of Llama 3 8B and 70B; none of others.
[[nodiscard]] std::optional<UsualEstimate> usual_estimate_of(const model::DecoderConfig& shape);

/// A step on GPUs of one host.
struct EstimatedStep {
  MemoryPlan memory = {};
  std::int64_t before_bytes = 0;  ///< of a rank before it
  StepTime time = {};
};

/// The plans that the estimate is held against: full_shard in bfloat16, one micro-batch a GPU.
struct PlansBesideEstimate {
  std::string device;
  int ranks = 0;               ///< of a host
  std::int64_t tokens = 0;     ///< of a rank's micro-batch
  EstimatedStep checkpointed;  ///< activations, with moments of 32 bits
  EstimatedStep kept;          ///< no activation is computed again
  EstimatedStep narrow;        ///< checkpointed, with moments of 16 bits
  StepTime across_hosts;       ///< checkpointed, on two such hosts
  double tokens_per_second = 0;
};

struct EstimateRow {
  std::string what;
  std::string usual;
  std::string planned;
  std::string why;  ///< they differ
};

/// A row for each figure of the estimate, and for what it leaves out.
[[nodiscard]] std::vector<EstimateRow> beside_estimate(const UsualEstimate& estimate,
                                                       const model::DecoderConfig& shape,
                                                       const PlansBesideEstimate& plans);

}  // namespace llm::plan
