#pragma once
// Text of data as it may be shown.

#include <string>
#include <vector>

#include "llm/train/data_preview.h"

namespace llm::train {

/// A sample on one line, supervised text in [[ ]]: "34 tokens, 3 supervised; 30 tokens cut off:
/// Who?[[ Lily</s>]]".
[[nodiscard]] std::string one_line(const PreviewedSample& sample);

/// How many tokens, of which file, and what was cut: "squad.json, q7, step 1: 34 tokens, 3
/// supervised; 30 tokens cut off (120 bytes)".
[[nodiscard]] std::string title_of(const PreviewedSample& sample);

/// A text without the middle of what is longer than a screen or two, unless `clip` is None. Cuts no
/// character.
[[nodiscard]] std::string clipped_middle(const std::string& text, Clip clip);

/// What may be wrong with the samples, a line each: duplicates, and samples that teach nothing.
[[nodiscard]] std::vector<std::string> doubts_of(const DataPreview& preview);

/// Samples of each file: "a.jsonl: 20 samples, 3 skipped".
[[nodiscard]] std::string line_of(const TrainingPart& part);
/// "skipped: a.jsonl: line 3, byte 57: has no …".
[[nodiscard]] std::string line_of(const text::BadSample& bad);

}  // namespace llm::train
