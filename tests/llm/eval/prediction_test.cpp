// Files of answers: SQuAD's own script finds in them what was measured.

#include "llm/eval/prediction.h"

#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/test_data.h"

namespace llm::eval {
namespace {

using nlohmann::json;

// The recorded answers, and what the official script makes of each.
std::vector<json> recorded() {
  std::istringstream lines(
      sherd::test::bytes_of(sherd::test::data_folder() / "goldens/squad-metric.jsonl"));
  std::vector<json> cases;
  for (std::string line; std::getline(lines, line);) {
    cases.push_back(json::parse(line));
  }
  return cases;
}

std::vector<Prediction> predictions_of(const std::vector<json>& cases) {
  std::vector<Prediction> predictions;
  for (const json& one : cases) {
    const std::string id = "q" + std::to_string(predictions.size());
    const auto gold = one["golds"].get<std::vector<std::string>>();
    const auto text = one["prediction"].get<std::string>();
    predictions.push_back({id, "What is " + id + "?", gold, text, score_answer(text, gold)});
  }
  return predictions;
}

TEST(Predictions, AreOneObjectOfAnswersById) {
  const std::vector<json> cases = recorded();
  const json file = json::parse(squad_json(predictions_of(cases)));
  ASSERT_EQ(file.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(file["q" + std::to_string(i)], cases[i]["prediction"]);
  }
}

TEST(Predictions, HaveTheOfficialScoresInReadableLines) {
  const std::vector<json> cases = recorded();
  std::istringstream lines(prediction_lines(predictions_of(cases)));
  std::size_t i = 0;
  for (std::string line; std::getline(lines, line); ++i) {
    const json one = json::parse(line);
    EXPECT_EQ(one["id"], "q" + std::to_string(i));
    EXPECT_EQ(one["answers"], cases[i]["golds"]);
    EXPECT_EQ(one["prediction"], cases[i]["prediction"]);
    EXPECT_EQ(one["em"], cases[i]["em"]);
    EXPECT_DOUBLE_EQ(one["f1"].get<double>(), cases[i]["f1"].get<double>());
  }
  EXPECT_EQ(i, cases.size());
}

TEST(Predictions, ThatAreNoUtf8AreWrittenWithReplacements) {
  const std::vector<Prediction> one = {{"a", "?", {"x"}, "caf\xc3", {}}};
  EXPECT_EQ(json::parse(squad_json(one))["a"], "caf\xef\xbf\xbd");
  EXPECT_EQ(json::parse(prediction_lines(one))["prediction"], "caf\xef\xbf\xbd");
}

TEST(Predictions, ThatThereIsNoAnswerIsTheEmptyTextOfVersionTwo) {
  const std::vector<Prediction> some = {
      {"a", "?", {"unanswerable"}, " Unanswerable.", {1, 1}, true},
      {"b", "?", {"Paris"}, "unanswerable", {0, 0}},
      {"c", "?", {"unanswerable"}, "Paris", {0, 0}, true}};
  const json file = json::parse(squad_json(some));
  EXPECT_EQ(file["a"], "");
  EXPECT_EQ(file["b"], "");
  EXPECT_EQ(file["c"], "Paris");
  const json without = json::parse(squad_json(std::span(some).subspan(1, 1)));
  EXPECT_EQ(without["b"], "unanswerable");
  // A question of version 1.1 may have that word as its answer.
  const std::vector<Prediction> word = {{"a", "?", {"unanswerable"}, "unanswerable", {1, 1}}};
  EXPECT_EQ(json::parse(squad_json(word))["a"], "unanswerable");
}

}  // namespace
}  // namespace llm::eval
