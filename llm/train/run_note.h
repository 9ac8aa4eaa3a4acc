#pragma once
// What a checkpoint remembers of the run it belongs to.

#include <cstdint>
#include <string>

#include "llm/config/run_config.h"

namespace llm::train {

/// Kept as the checkpoint's note.
struct RunNote {
  std::int64_t step = 0;         ///< steps done: the position in the data follows from it
  std::int64_t total_steps = 0;  ///< the schedule's length
  std::int64_t samples = 0;      ///< of the training data
  std::string model;             ///< the source model's folder, absolute
  std::string config;            ///< the run's configuration, as TOML
};

[[nodiscard]] std::string to_text(const RunNote& note);
/// Throws sherd::Error(BadData), naming `folder`.
[[nodiscard]] RunNote note_from_text(const std::string& text, const std::string& folder);

/// Refuses to resume with settings that would make it another run: data, order, batch, optimizer or
/// precision. Throws sherd::Error(Usage), listing every setting that differs with both values.
void check_same_run(const RunNote& note, const config::RunConfig& config, std::int64_t samples,
                    std::int64_t total_steps, const std::string& folder);

}  // namespace llm::train
