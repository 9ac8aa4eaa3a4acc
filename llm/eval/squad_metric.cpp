#include "llm/eval/squad_metric.h"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "llm/text/answer.h"
#include "llm/text/questions.h"

namespace llm::eval {
namespace {

// Normalised words, sorted.
std::vector<std::string> words_of(const std::string& normalized) {
  std::istringstream stream(normalized);
  std::vector<std::string> words(std::istream_iterator<std::string>(stream), {});
  std::sort(words.begin(), words.end());
  return words;
}

double f1_of(const std::vector<std::string>& prediction, const std::vector<std::string>& gold) {
  std::vector<std::string> common;
  std::set_intersection(prediction.begin(), prediction.end(), gold.begin(), gold.end(),
                        std::back_inserter(common));
  if (common.empty()) {
    return 0;
  }
  const auto same = static_cast<double>(common.size());
  const double precision = same / static_cast<double>(prediction.size());
  const double recall = same / static_cast<double>(gold.size());
  return 2 * precision * recall / (precision + recall);
}

double percent(double sum, std::int64_t questions) {
  return questions == 0 ? 0 : 100 * sum / static_cast<double>(questions);
}

}  // namespace

AnswerScore score_answer(const std::string& prediction, std::span<const std::string> gold_answers) {
  const std::string normalized = text::normalized_answer(prediction);
  const std::vector<std::string> words = words_of(normalized);
  AnswerScore best;
  for (const std::string& gold : gold_answers) {
    const std::string normalized_gold = text::normalized_answer(gold);
    best.exact_match = std::max(best.exact_match, normalized == normalized_gold ? 1.0 : 0.0);
    best.f1 = std::max(best.f1, f1_of(words, words_of(normalized_gold)));
  }
  return best;
}

AnswerScore score_no_answer(const std::string& prediction) {
  const std::string normalized = text::normalized_answer(prediction);
  const double right = normalized.empty() || normalized == text::kNoAnswer ? 1 : 0;
  return {right, right};
}

void SquadScore::add(const AnswerScore& answer) {
  exact_match_sum += answer.exact_match;
  f1_sum += answer.f1;
  questions += 1;
}

double SquadScore::exact_match_percent() const {
  return percent(exact_match_sum, questions);
}

double SquadScore::f1_percent() const {
  return percent(f1_sum, questions);
}

}  // namespace llm::eval
