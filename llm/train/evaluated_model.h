#pragma once
// What `sherd eval` evaluates: a model folder, or what a run has learned.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "llm/config/run_config.h"
#include "llm/model/causal_lm.h"
#include "llm/text/records.h"
#include "llm/train/load_model.h"
#include "sherd/fully_shard.h"

namespace llm::train {

/// A model and how it was trained: prompts are cut, and answers written, as in its run.
struct EvaluatedModel {
  std::string model_folder;  ///< config and tokenizer; the weights too, without a checkpoint
  io::IgnoredFields ignored_fields = {{}, families::IgnoreBy::Flag};  ///< those of the run
  std::string checkpoint;      ///< empty: the model folder's weights
  text::Columns columns = {};  ///< of the run's data: evaluated first, else trained on
  std::int64_t max_length = 0;
  std::int64_t max_answer_tokens = 32;
  c10::ScalarType param_dtype = c10::kFloat;
  std::optional<config::RunConfig> run = std::nullopt;  ///< the run's, where it is one
  std::vector<std::string> notices = {};  ///< newer checkpoints that are damaged: to be printed
};

/// `path` is a Hugging Face folder, a run's output folder or a checkpoint's folder; `which` chooses
/// among the checkpoints of a run (chosen_checkpoint()), empty: the newest intact one. Not
/// collective. Throws sherd::Error: InputMissing, BadData; Usage for a choice where there is none.
[[nodiscard]] EvaluatedModel find_evaluated(const std::string& path, const std::string& which = "");

/// In shards; `shape` is that of its model folder. Collective. Memory: the shards; of a checkpoint
/// also, on rank 0, one parameter. Throws sherd::Error as load_sharded() and
/// sherd::load_from_rank0() do.
[[nodiscard]] sherd::Sharded<model::CausalLm> load_evaluated(const EvaluatedModel& source,
                                                             const ModelShape& shape,
                                                             const sherd::Mesh& mesh,
                                                             const sherd::ShardOptions& options);

}  // namespace llm::train
