#pragma once
// The records behind training samples, read once more for what samples do not tell.

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "llm/inputs/previewed_sample.h"
#include "llm/inputs/run_data.h"
#include "llm/text/prompt.h"
#include "llm/text/questions.h"

namespace llm::inputs {

/// Reads a training file when a sample of it is asked for. Where conversations make several
/// samples, it encodes the whole file, on all cores, to find the record of a sample. Memory: the
/// questions of each file that was read.
class SampleRecords {
 public:
  explicit SampleRecords(const OpenData& run);

  /// Sets source, id, what was cut off, and of a conversation its turns and samples. `index` is
  /// that of the training sample. Throws sherd::Error as questions_of_part().
  void complete(PreviewedSample& sample, std::int64_t index);
  /// Throws as complete().
  [[nodiscard]] ConversationFigures conversations_of(std::size_t part);

 private:
  struct Part {
    text::QuestionFile file;
    std::vector<Unrolling> unrolling;         // [questions]; empty: one sample each
    std::vector<std::int64_t> first_samples;  // [questions], where there is `unrolling`
  };

  [[nodiscard]] const Part& part(std::size_t number);
  void tell_conversation(PreviewedSample& sample, const text::Question& question) const;
  void tell_cut(PreviewedSample& sample, const text::QuestionFile& file, std::size_t number) const;

  const OpenData& run_;
  text::PromptEncoder encoder_;
  std::map<std::size_t, Part> parts_;
};

}  // namespace llm::inputs
