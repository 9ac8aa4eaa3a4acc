#pragma once
// The records behind training samples, read once more for what samples do not tell.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "llm/inputs/previewed_sample.h"
#include "llm/inputs/run_data.h"
#include "llm/text/prompt.h"
#include "llm/text/questions.h"

namespace llm::inputs {

/// The records of some training samples. Memory: theirs.
class SampleRecords {
 public:
  /// Reads each training file of these samples once, up to the last of their records. Throws
  /// sherd::Error as source_of_part() and inputs::records_at().
  SampleRecords(const OpenData& run, const std::vector<std::int64_t>& samples);

  /// Sets source, id, what was cut off, and of a conversation its turns and samples. `index` is
  /// that of one of these samples.
  void complete(PreviewedSample& sample, std::int64_t index) const;

 private:
  struct Found {
    std::string source;
    std::int64_t number = 1;                     // of the record's samples, from 1
    const text::QuestionFile* record = nullptr;  // one of records_
  };

  void find(std::size_t part, const std::vector<std::int64_t>& samples);
  void tell_conversation(PreviewedSample& sample, const text::Question& question) const;
  void tell_cut(PreviewedSample& sample, const text::QuestionFile& record) const;

  const OpenData& run_;
  text::PromptEncoder encoder_;
  std::vector<std::map<std::int64_t, text::QuestionFile>> records_;  // [parts], by their numbers
  std::map<std::int64_t, Found> found_;                              // by samples
};

}  // namespace llm::inputs
