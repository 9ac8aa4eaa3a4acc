#pragma once
// JSON lines, read in batches of whole lines.

#include <memory>

#include "llm/inputs/record_source.h"

namespace llm::inputs {

/// Memory: a batch, which is 256 KiB or one line that is longer.
[[nodiscard]] std::unique_ptr<RecordSource> lines_of(const Source& source, const Cursor& begin);

}  // namespace llm::inputs
