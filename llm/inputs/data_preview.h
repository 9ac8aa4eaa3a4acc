#pragma once
// The first samples of a run as the model sees them, and what all of them are like.

#include <cstdint>
#include <string>
#include <vector>

#include "llm/inputs/previewed_sample.h"
#include "llm/inputs/run_data.h"

namespace llm::inputs {

[[nodiscard]] DataFigures data_figures(const RunData& data, const config::RunConfig& config,
                                       const BatchShape& shape);

/// With the first `count` samples. Reads their files once more, for what was cut off. Not
/// collective. Throws sherd::Error as SampleRecords does.
[[nodiscard]] DataPreview preview_of(const OpenData& run, std::int64_t count);

/// What `ranks` ranks get in `step` (from 1), rank after rank: by the order of training alone. Not
/// collective. Throws as preview_of(), and sherd::Error(Usage) for a step that the run does not
/// have.
[[nodiscard]] std::vector<DealtSample> samples_of_step(const OpenData& run, std::int64_t step,
                                                       std::int64_t ranks);

/// What a run prints at its start: the figures, and three samples of a line each.
[[nodiscard]] std::string example_lines(const OpenData& run);

}  // namespace llm::inputs
