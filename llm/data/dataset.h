#pragma once
// A data set in memory: questions, and what the model sees of them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/data/samples.h"
#include "llm/data/subset.h"
#include "llm/text/prompt.h"
#include "llm/text/questions.h"
#include "llm/text/records.h"

namespace llm::data {

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

/// How a data file is written, and what its bad samples lead to.
struct FileReading {
  config::DataFormat format = config::DataFormat::Auto;
  text::Columns columns = {};
  text::BadSamplePolicy bad = {};
};

/// A data file, read once: its questions, their tokens and its digest come from the same bytes,
/// even if the file changes in the meantime.
struct DataFile {
  std::string name;
  std::string bytes;
  std::string sha256;
  FileReading reading = {};  ///< its format is never Auto
};

/// What Auto means for a file: jsonl or parquet by the ending of its name (.jsonl, .ndjson,
/// .parquet); else parquet where it begins as such files do, json where it begins with '[', and
/// squad where it does not.
config::DataFormat format_of(const std::string& name, std::string_view bytes);

/// Throws sherd::Error InputMissing if it cannot be read.
DataFile read_data_file(const std::filesystem::path& path, const FileReading& reading = {});

/// The questions of a file, or those that `limit` leaves of the good ones.
/// Throws sherd::Error as `text::parse_squad`, `parse_jsonl` and `parse_json_records` do.
text::QuestionFile questions_of(const DataFile& file, const Limit& limit);
/// Those that have samples, in their order, where the file's tokens are told by `report`: what did
/// not fit is in `skipped`, or refused, as the file's policy is.
text::QuestionFile questions_of(const DataFile& file, const Limit& limit,
                                const DatasetReport& report, const text::PromptEncoder& encoder);

/// A question with its first answer. Throws sherd::Error BadData if it does not fit.
text::LabelledPrompt encode_question(const text::QuestionFile& file, std::size_t index,
                                     const text::PromptEncoder& encoder);

/// Encodes questions, each with its first answer, on as many threads as there are cores to use;
/// `name` is for messages. What does not fit in the limits is left out where `policy` allows it.
/// Cost: about 0.3 ms a question and thread. Memory: 5 bytes a token. Throws sherd::Error BadData,
/// naming the question, if one does not fit and may not be skipped, and if none fits.
TokenizedFile tokenize(const text::QuestionFile& file, const std::string& name,
                       const text::PromptEncoder& encoder,
                       const text::BadSamplePolicy& policy = {});

/// `questions_of` and `tokenize`.
Dataset load_dataset(const DataFile& file, const text::PromptEncoder& encoder,
                     const Limit& limit = {});
/// The same of a file that is still to be read.
Dataset load_dataset(const std::filesystem::path& path, const text::PromptEncoder& encoder,
                     const Limit& limit = {});

}  // namespace llm::data
