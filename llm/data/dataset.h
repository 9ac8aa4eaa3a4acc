#pragma once
// A data set in memory: questions, and what the model sees of them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "llm/text/prompt.h"
#include "llm/text/squad.h"

namespace llm::data {

/// A question in tokens; see llm::text::LabelledPrompt.
using Sample = text::LabelledPrompt;

/// What became of a data file's questions. Nothing is cut or lost in silence.
struct DatasetReport {
  std::string name;  ///< the file
  std::int64_t samples = 0;
  std::int64_t tokens = 0;             ///< prompts and answers
  std::int64_t supervised_tokens = 0;  ///< answers and end tokens
  std::int64_t longest_tokens = 0;
  std::int64_t contexts_cut = 0;
  std::int64_t answers_cut = 0;
  std::int64_t answers_outside =
      0;  ///< whose (first) answer lies beyond the cut: it cannot be found in the prompt
  text::PromptLimits limits;

  /// One sentence for people, without a line end.
  [[nodiscard]] std::string sentence() const;
};

/// A data file, encoded. `samples[i]` is `file.questions[i]` with its first answer.
struct Dataset {
  text::SquadFile file;
  std::vector<Sample> samples;
  DatasetReport report;
};

/// Reads a SQuAD file and encodes its questions, or the first `limit` of them if that is not 0.
/// Cost: about 0.3 ms a question. Memory: 4 bytes a token, and the file's text.
/// Throws sherd::Error as `text::read_squad` does, and BadData, naming the question, if one does
/// not fit in the limits.
Dataset load_dataset(const std::filesystem::path& path, const text::PromptEncoder& encoder,
                     std::int64_t limit = 0);

}  // namespace llm::data
