#pragma once
// Exact match and F1 of answers, as the official SQuAD v1.1 evaluation script computes them.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace llm::eval {

/// How well one answer fits, from 0 to 1.
struct AnswerScore {
  double exact_match = 0;  ///< 1 if it equals a gold answer after normalisation
  double f1 =
      0;  ///< harmonic mean of precision and recall over words, the best over the gold answers
};

/// Scores a prediction against the gold answers of its question (the best of each measure counts,
/// as in the script). Two texts without a word match exactly and have F1 0, as in the script.
/// Source: evaluate-v1.1.py of Rajpurkar et al. 2016. Normalisation: llm::text::normalized_answer.
AnswerScore score_answer(const std::string& prediction, std::span<const std::string> gold_answers);

/// Scores what was answered to a question that has no answer: as in SQuAD v2.0's script, 1 for the
/// empty text and 0 for any other. The text that such questions are trained on counts as empty.
AnswerScore score_no_answer(const std::string& prediction);

/// Sums over questions; those of several ranks add up.
struct SquadScore {
  double exact_match_sum = 0;
  double f1_sum = 0;
  std::int64_t questions = 0;

  void add(const AnswerScore& answer);
  /// Percent, 0 to 100; 0 without questions.
  [[nodiscard]] double exact_match_percent() const;
  [[nodiscard]] double f1_percent() const;
};

}  // namespace llm::eval
