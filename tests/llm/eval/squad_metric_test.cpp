#include "llm/eval/squad_metric.h"

#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "llm/text/answer.h"
#include "tests/support/test_data.h"

namespace llm::eval {
namespace {

TEST(SquadMetric, GivesWhatTheOfficialScriptGives) {
  std::istringstream lines(
      sherd::test::bytes_of(sherd::test::data_folder() / "goldens/squad-metric.jsonl"));
  int cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const auto one = nlohmann::json::parse(line);
    const auto prediction = one["prediction"].get<std::string>();
    const auto golds = one["golds"].get<std::vector<std::string>>();
    EXPECT_EQ(text::normalized_answer(prediction), one["normalized"].get<std::string>()) << line;
    const AnswerScore score = score_answer(prediction, golds);
    EXPECT_EQ(score.exact_match, one["em"].get<double>()) << line;
    EXPECT_DOUBLE_EQ(score.f1, one["f1"].get<double>()) << line;
  }
  EXPECT_EQ(cases, 70);
}

TEST(SquadMetric, BytesThatAreNoUtf8AreCountedAsUnknownCharacters) {
  EXPECT_EQ(text::normalized_answer("the \xff end"), "\xef\xbf\xbd end");
  EXPECT_EQ(text::normalized_answer("caf\xc3"), "caf\xef\xbf\xbd");
}

TEST(SquadMetric, AveragesInPercent) {
  SquadScore score;
  EXPECT_EQ(score.exact_match_percent(), 0);
  EXPECT_EQ(score.f1_percent(), 0);
  const std::vector<std::string> gold = {"two words"};
  score.add(score_answer("Two words.", gold));
  score.add(score_answer("words", gold));
  score.add(score_answer("none", gold));
  EXPECT_EQ(score.questions, 3);
  EXPECT_DOUBLE_EQ(score.exact_match_percent(), 100.0 / 3);
  EXPECT_DOUBLE_EQ(score.f1_percent(), 100.0 * (1 + 2.0 / 3) / 3);
}

TEST(SquadMetric, WithoutGoldAnswersNothingFits) {
  const AnswerScore score = score_answer("x", {});
  EXPECT_EQ(score.exact_match, 0);
  EXPECT_EQ(score.f1, 0);
}

TEST(SquadMetric, OfAQuestionWithoutAnswerOnlyNoneIsRight) {
  for (const std::string right : {"", " the ", "unanswerable", "Unanswerable."}) {
    EXPECT_EQ(score_no_answer(right).exact_match, 1) << right;
    EXPECT_EQ(score_no_answer(right).f1, 1) << right;
  }
  for (const std::string wrong : {"Paris", "unanswerable question"}) {
    EXPECT_EQ(score_no_answer(wrong).exact_match, 0) << wrong;
    EXPECT_EQ(score_no_answer(wrong).f1, 0) << wrong;
  }
}

}  // namespace
}  // namespace llm::eval
