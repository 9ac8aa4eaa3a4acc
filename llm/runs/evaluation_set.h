#pragma once
// Which evaluations of a run can be put beside each other.

#include <string>
#include <vector>

#include "llm/config/run_config.h"

namespace llm::runs {

/// The questions of an evaluation: one of `[[data.eval]]`, and a digest of what is read of it. Two
/// entries may name one file and take other samples of it, and a run may go on with other ones.
struct EvaluationSet {
  int index = 0;       ///< in data.eval
  std::string digest;  ///< empty: not known
  bool operator==(const EvaluationSet&) const = default;
};

/// `sha256` is of the file, `format` how it was read.
[[nodiscard]] EvaluationSet evaluation_set(int index, const config::DataSet& set,
                                           const std::string& sha256, config::DataFormat format);

}  // namespace llm::runs
