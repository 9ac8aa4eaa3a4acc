#pragma once
// Questions that fit in no sample, as the bad samples that they are.

#include <cstdint>
#include <vector>

#include "llm/inputs/data_file.h"
#include "llm/text/prompt.h"

namespace llm::inputs {

/// What is bad of a data set: the skipped of `questions`, and those of them at the indices `unfit`,
/// with where they stand and why they do not fit. Throws sherd::Error(BadData) that tells them
/// where the set's policy does not allow to skip them, or not so many. Cost: encodes what is told,
/// and reads SQuAD's JSON once more.
[[nodiscard]] std::vector<text::BadSample> with_unfit(const text::QuestionFile& questions,
                                                      const std::vector<std::int64_t>& unfit,
                                                      const DataFile& file,
                                                      const text::PromptEncoder& encoder);

}  // namespace llm::inputs
