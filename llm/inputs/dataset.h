#pragma once
// A data set in memory: questions, and what the model sees of them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "llm/inputs/data_file.h"
#include "llm/inputs/samples.h"
#include "llm/inputs/subset.h"
#include "llm/text/prompt.h"
#include "llm/text/questions.h"

namespace llm::inputs {

/// How a data file's questions were encoded. Nothing is cut or dropped silently.
struct DatasetReport {
  std::string name;      ///< the file
  bool records = false;  ///< prompts and completions; else questions about contexts
  std::int64_t samples = 0;
  std::int64_t skipped = 0;            ///< bad samples that were left out
  std::int64_t tokens = 0;             ///< prompts and answers
  std::int64_t supervised_tokens = 0;  ///< answers and end tokens
  std::int64_t longest_tokens = 0;
  std::int64_t contexts_cut = 0;  ///< of records: prompts
  std::int64_t answers_cut = 0;   ///< of records: completions
  std::int64_t answers_outside =
      0;  ///< whose (first) answer lies beyond the cut: it cannot be found in the prompt
  std::int64_t duplicates = 0;  ///< samples that have the tokens of one before them
  /// Records that are conversations and yield samples: encoded with the chat template.
  std::int64_t conversations = 0;
  text::UnreadFields unread = {};  ///< of all good records of the file
  text::PromptLimits limits;
  std::vector<std::int64_t> unfit;  ///< indices of questions that fit in no sample: skipped

  /// "; 2 bad samples skipped"; empty where there are none.
  [[nodiscard]] std::string skipped_text() const;
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
  text::QuestionFile file;
  Samples samples;
  DatasetReport report;
};

/// The questions of a data set, or those that `limit` leaves of the good ones. Throws sherd::Error
/// as parse_data_file() does.
text::QuestionFile questions_of(const DataFile& file, const Limit& limit);
/// Those that have samples, in their order, where the set's tokens are told by `report`: what did
/// not fit is in `skipped`, or refused, as its policy is.
text::QuestionFile questions_of(const DataFile& file, const Limit& limit,
                                const DatasetReport& report, const text::PromptEncoder& encoder);

/// A question with its first answer. Throws sherd::Error BadData if it does not fit.
text::LabelledPrompt encode_question(const text::QuestionFile& file, std::size_t index,
                                     const text::PromptEncoder& encoder);

/// The samples of a question: one with its first answer, or those of a conversation. Throws
/// sherd::Error BadData if it does not fit, or its conversation cannot be learned.
std::vector<text::LabelledPrompt> encode_samples(const text::QuestionFile& file, std::size_t index,
                                                 const text::PromptEncoder& encoder);

/// Told now and then, by several threads, how many of a file's questions are encoded.
using OnEncoded = std::function<void(std::int64_t done, std::int64_t total)>;

/// Encodes questions of `file`, each with its first answer, on as many threads as there are cores
/// to use. What does not fit in the limits is left out where the file's policy allows it. Cost:
/// about 0.3 ms a question and thread. Memory: 5 bytes a token and 20 a sample. Throws sherd::Error
/// BadData, naming the questions, if some do not fit and may not be skipped, and if none fits.
TokenizedFile tokenize(const text::QuestionFile& questions, const DataFile& file,
                       const text::PromptEncoder& encoder, const OnEncoded& on_encoded = {});

/// `questions_of` and `tokenize`.
Dataset load_dataset(const DataFile& file, const text::PromptEncoder& encoder,
                     const Limit& limit = {}, const OnEncoded& on_encoded = {});
/// The same of a file that is still to be read.
Dataset load_dataset(const std::filesystem::path& path, const text::PromptEncoder& encoder,
                     const Limit& limit = {});

}  // namespace llm::inputs
