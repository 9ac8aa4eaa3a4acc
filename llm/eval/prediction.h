#pragma once
// What a model answered, question by question, and how that is written down.

#include <span>
#include <string>
#include <vector>

#include "llm/eval/squad_metric.h"

namespace llm::eval {

/// One question's answer.
struct Prediction {
  std::string id;
  std::string question;
  std::vector<std::string> gold;  ///< at least one
  std::string text;
  AnswerScore score;
  bool unanswerable = false;  ///< SQuAD v2.0 says that there is no answer
};

/// One JSON object, {id: answer}: what SQuAD's own evaluation script reads beside the data file.
/// Where some questions are unanswerable, that a question has no answer is the empty text.
[[nodiscard]] std::string squad_json(std::span<const Prediction> predictions);

/// A JSON object a line, for people and programs: `id`, `question`, `answers` (the gold ones),
/// `prediction`, `em` (0 or 1), `f1` (0 to 1).
[[nodiscard]] std::string prediction_lines(std::span<const Prediction> predictions);

}  // namespace llm::eval
