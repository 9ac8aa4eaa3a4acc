#pragma once
// A data set in memory: questions, and what the model sees of them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "llm/data/samples.h"
#include "llm/data/subset.h"
#include "llm/text/prompt.h"
#include "llm/text/squad.h"

namespace llm::data {

/// How a data file's questions were encoded. Nothing is cut or dropped silently.
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

/// What training needs of a data file.
struct TokenizedFile {
  Samples samples;
  DatasetReport report;
};

/// What evaluation needs of one: `samples[i]` is `file.questions[i]` with its first answer.
struct Dataset {
  text::SquadFile file;
  Samples samples;
  DatasetReport report;
};

/// A data file, read once: its questions, their tokens and its digest come from the same bytes,
/// even if the file changes in the meantime.
struct DataFile {
  std::string name;
  std::string bytes;
  std::string sha256;
};

/// Throws sherd::Error InputMissing if it cannot be read.
DataFile read_data_file(const std::filesystem::path& path);

/// The questions of a SQuAD file, or those that `limit` leaves.
/// Throws sherd::Error as `text::parse_squad` does.
text::SquadFile questions_of(const DataFile& file, const Limit& limit);

/// Encodes questions, each with its first answer, on as many threads as there are cores to use;
/// `name` is for messages. Cost: about 0.3 ms a question and thread. Memory: 4 bytes a token.
/// Throws sherd::Error BadData, naming the question, if one does not fit in the limits.
TokenizedFile tokenize(const text::SquadFile& file, const std::string& name,
                       const text::PromptEncoder& encoder);

/// `questions_of` and `tokenize`.
Dataset load_dataset(const DataFile& file, const text::PromptEncoder& encoder,
                     const Limit& limit = {});
/// The same of a file that is still to be read.
Dataset load_dataset(const std::filesystem::path& path, const text::PromptEncoder& encoder,
                     const Limit& limit = {});

}  // namespace llm::data
