#pragma once
// Text of data as it may be shown.

#include <string>

#include "llm/train/data_preview.h"

namespace llm::train {

/// A sample on one line, supervised text in [[ ]]: "34 tokens, 3 supervised; 30 tokens cut off:
/// Who?[[ Lily</s>]]".
[[nodiscard]] std::string one_line(const PreviewedSample& sample);

/// How many tokens, of which file, and what was cut: "squad.json, q7, step 1: 34 tokens, 3
/// supervised; 30 tokens cut off (120 bytes)".
[[nodiscard]] std::string title_of(const PreviewedSample& sample);

/// Samples of each file: "a.jsonl: 20 samples, 3 skipped".
[[nodiscard]] std::string line_of(const TrainingPart& part);
/// "skipped: a.jsonl: line 3, byte 57: has no …".
[[nodiscard]] std::string line_of(const text::BadSample& bad);

}  // namespace llm::train
