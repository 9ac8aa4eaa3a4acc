#pragma once
// How a data set's records become samples, and what is told of them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llm/inputs/samples.h"
#include "llm/text/bad_sample.h"
#include "llm/text/prompt.h"
#include "llm/text/questions.h"

namespace llm::inputs {

/// Of the conversations of a data set that have samples.
struct ConversationFigures {
  ConversationFigures() = default;
  /// Of a record, by its samples; there is one at least.
  explicit ConversationFigures(const std::vector<text::LabelledPrompt>& samples);
  void add(const ConversationFigures& more);

  std::int64_t conversations = 0;
  std::int64_t unrolled = 0;   ///< those that make several samples
  std::int64_t rewritten = 0;  ///< of these: the template writes earlier turns differently later on
  std::int64_t apart = 0;      ///< of these: a prompt alone has other token ids than in the whole
  std::int64_t cut = 0;        ///< conversations of which something was cut: at the end of samples
  std::int64_t answers_cut = 0;  ///< of these: in what is learned
};

/// How a data file's records were encoded. Nothing is cut or dropped silently.
struct DatasetReport {
  std::string name;      ///< the file
  bool records = false;  ///< prompts and completions; else questions about contexts
  std::int64_t samples = 0;
  std::int64_t pairs = 0;              ///< of the samples: preference pairs
  std::int64_t skipped = 0;            ///< bad samples that were left out
  std::int64_t tokens = 0;             ///< prompts and answers
  std::int64_t supervised_tokens = 0;  ///< answers and end tokens
  std::int64_t longest_tokens = 0;     ///< of a sample; of a pair its longer text
  std::int64_t contexts_cut = 0;       ///< of records: prompts; conversations are counted in `chat`
  std::int64_t answers_cut = 0;        ///< of records: completions
  std::int64_t answers_outside =
      0;  ///< whose (first) answer lies beyond the cut: it cannot be found in the prompt
  std::int64_t duplicates = 0;  ///< samples that have the tokens of one before them
  ConversationFigures chat;
  text::UnreadFields unread = {};  ///< of all good records of the file
  text::PromptLimits limits;

  /// Counts a sample, apart from `chat`.
  void add(const text::LabelledPrompt& sample);
  /// "; 2 bad samples skipped"; empty where there are none.
  [[nodiscard]] std::string skipped_text() const;
  /// One sentence for people, without a line end.
  [[nodiscard]] std::string sentence() const;
};

/// What evaluation needs of a data file. Nothing of its records is held.
struct Dataset {
  Samples samples;
  DatasetReport report;
  std::vector<text::BadSample> skipped;
  /// The record of a sample, read when it is asked for, without its context; a conversation's has
  /// neither question nor answers. Throws sherd::Error(StorageIo).
  std::function<text::Question(std::size_t sample)> record;
  std::string digest = {};  ///< TokenStore::digest()
};

/// A question with its first answer. Throws sherd::Error BadData if it does not fit.
text::LabelledPrompt encode_question(const text::QuestionFile& file, std::size_t index,
                                     const text::PromptEncoder& encoder);

/// The samples of a question: one with its first answer or of a pair, or those of a conversation.
/// Throws sherd::Error BadData if it does not fit, its conversation cannot be learned, or both
/// sides of a pair have the same tokens.
std::vector<text::LabelledPrompt> encode_samples(const text::QuestionFile& file, std::size_t index,
                                                 const text::PromptEncoder& encoder);

}  // namespace llm::inputs
