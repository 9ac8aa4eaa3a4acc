#pragma once
// The folder of a run.

#include <filesystem>
#include <string>

#include "llm/config/run_config.h"
#include "llm/eval/evaluator.h"
#include "sherd/world.h"

namespace llm::train {

/// Where the step log goes: `log.jsonl`, or a file in the output folder.
[[nodiscard]] std::filesystem::path log_path(const config::RunConfig& config);

/// Makes the output folder, tries that it can be written to, and leaves the resolved configuration
/// in it, so that a run does not find out after hours that it cannot save. Rank 0 does it, and
/// every rank learns the result. Collective. Throws sherd::Error(CannotWrite), naming the folder.
void prepare_output(const config::RunConfig& config, sherd::World& world);

/// "evaluation: loss 2.345 over 100 samples (812 supervised tokens), EM 0.0, F1 3.1, 45.2
/// samples/s"
[[nodiscard]] std::string evaluation_line(const eval::EvaluationResult& result, bool generated);

}  // namespace llm::train
