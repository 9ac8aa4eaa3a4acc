#pragma once
// Records that fit in no sample, as the bad samples that they are.

#include <cstddef>
#include <string>

#include "llm/inputs/data_file.h"
#include "llm/text/bad_sample.h"
#include "llm/text/questions.h"

namespace llm::inputs {

/// A record of `file` that fits in no sample, with where it stands and its bytes. Cost: reads the
/// file up to the record; of SQuAD its JSON once more.
[[nodiscard]] text::BadSample unfit_sample(const text::Question& record, const DataFile& file,
                                           const std::string& why);

}  // namespace llm::inputs
