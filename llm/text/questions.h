#pragma once
// What a data file holds: prompts with their answers, however it is written.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llm/text/bad_sample.h"
#include "llm/text/unread_fields.h"

namespace llm::text {

struct Conversation;

/// The answer that a question without an answer is trained on.
inline constexpr std::string_view kNoAnswer = "unanswerable";

/// A gold answer; of SQuAD, a span of its question's context.
struct Answer {
  std::string text;
  std::int64_t begin_byte = 0;  ///< where it starts in the context (the file counts code points)
};

/// A question about a context, or a record: a prompt that is used as it is.
struct Question {
  /// The context of a record: it has none.
  static constexpr std::size_t kNoContext = static_cast<std::size_t>(-1);

  std::string id;
  std::string question;
  std::size_t context = kNoContext;  ///< index into QuestionFile::contexts
  std::vector<Answer> answers;       ///< at least one; training learns the first
  bool unanswerable = false;         ///< SQuAD v2.0's `is_impossible`; its answer is kNoAnswer
  std::size_t file = 0;              ///< of several files its number
  /// Where a record of JSON stands in its file; both 0 where that is not known.
  std::int64_t begin_byte = 0, end_byte = 0;
  /// Of chat data, else null. Such a record has neither `question` nor `answers` when it is read.
  std::shared_ptr<const Conversation> conversation = {};
  /// Of a preference pair, whose preferred answer this is: the same prompt with the other one.
  std::shared_ptr<const Question> rejected = {};

  [[nodiscard]] bool is_record() const { return context == kNoContext; }
};

/// A data file in file order, or several one after the other; each context is held once.
struct QuestionFile {
  std::vector<std::string> contexts;
  std::vector<Question> questions;
  std::vector<BadSample> skipped = {};  ///< left out, where that was asked for
  UnreadFields unread = {};             ///< of good records
};

}  // namespace llm::text
