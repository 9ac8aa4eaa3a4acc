#pragma once
// What `sherd eval` writes and prints.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "llm/eval/evaluator.h"
#include "llm/inputs/dataset.h"

namespace app {

struct EvalReport {
  std::int64_t show = 0;         ///< questions to print
  std::string predictions = {};  ///< folder for the answers; empty: none
  bool generated = true;         ///< answers were generated
  bool json = false;             ///< one line of JSON on standard output
};

/// The result of one file.
struct EvalOutcome {
  llm::eval::EvaluationResult result;
  const llm::inputs::DatasetReport& report;
};

/// Writes and prints the result of the last of `outcomes`, as soon as its file is evaluated; JSON
/// after the last of `files`. On rank 0.
void report_evaluation(const std::vector<EvalOutcome>& outcomes, std::size_t files,
                       const EvalReport& options);

}  // namespace app
