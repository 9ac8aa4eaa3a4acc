#include "llm/text/squad.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/llm/text/read_squad.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using nlohmann::json;
using sherd::ExitCode;
using sherd::test::expect_error;

// Two questions on one paragraph; characters before the answers take 1, 2 and 4 bytes.
json good() {
  return json::parse(R"({"version": "1.1", "data": [{"title": "T", "paragraphs": [
    {"context": "Åsa 🦙 lives in Malmö.", "qas": [
      {"id": "q1", "question": "Where?", "answers": [{"text": "Malmö", "answer_start": 15}]},
      {"id": "q2", "question": "Who?", "answers": [{"text": "Åsa", "answer_start": 0},
                                                   {"text": "🦙", "answer_start": 4}]}]}]}]})");
}

const std::string kParagraph = "/data/0/paragraphs/0";
const std::string kQa = kParagraph + "/qas/0";
const std::string kAnswer = kQa + "/answers/0";

QuestionFile read(const std::string& bytes) {
  return parse_squad(bytes, "squad.json");
}

TEST(Squad, CountsCodePointsAsTheFormatDoes) {
  const QuestionFile file = read(good().dump());
  ASSERT_EQ(file.contexts.size(), 1U);
  ASSERT_EQ(file.questions.size(), 2U);
  EXPECT_EQ(file.questions[0].id, "q1");
  EXPECT_EQ(file.questions[0].question, "Where?");
  EXPECT_EQ(file.questions[0].context, 0U);
  EXPECT_EQ(file.questions[0].answers[0].begin_byte, 19);
  ASSERT_EQ(file.questions[1].answers.size(), 2U);
  EXPECT_EQ(file.questions[1].answers[1].text, "🦙");
  EXPECT_EQ(file.questions[1].answers[1].begin_byte, 5);
}

TEST(Squad, ReadsTheRecipeFiles) {
  const std::filesystem::path recipes =
      std::filesystem::path(SHERD_TEST_SOURCE_DIR) / "recipes/data";
  EXPECT_EQ(read_squad(recipes / "squad-32.json").questions.size(), 32U);
  EXPECT_EQ(read_squad(recipes / "squad-1000-train.json").questions.size(), 1001U);
  EXPECT_EQ(read_squad(recipes / "squad-100-heldout.json").questions.size(), 101U);
}

TEST(Squad, ReadsTheLargerFiles) {
  SHERD_NEEDS_EXTRA_DATA("squad");
  const auto folder = *sherd::test::extra_data("squad");
  EXPECT_EQ(read_squad(folder / "train-v1.1.json").questions.size(), 10313U);
  EXPECT_EQ(read_squad(folder / "dev-v1.1.json").questions.size(), 899U);
}

TEST(Squad, ReadsVersionTwoWithItsUnanswerableQuestions) {
  SHERD_NEEDS_EXTRA_DATA("squad");
  const QuestionFile file = read_squad(*sherd::test::extra_data("squad/dev-v2.0-5articles.json"));
  const auto impossible = std::count_if(file.questions.begin(), file.questions.end(),
                                        [](const auto& each) { return each.unanswerable; });
  EXPECT_EQ(impossible, 702);
  EXPECT_GT(std::ssize(file.questions), impossible);
}

TEST(Squad, AQuestionWithoutAnswerHasAFixedOne) {
  json file = good();
  json& qa = file[json::json_pointer(kQa)];
  qa["is_impossible"] = true;
  qa["answers"] = json::array();
  qa["plausible_answers"] = json::array({{{"text", "Lund"}, {"answer_start", 0}}});
  const QuestionFile read_back = read(file.dump());
  const Question& question = read_back.questions[0];
  EXPECT_TRUE(question.unanswerable);
  ASSERT_EQ(question.answers.size(), 1U);
  EXPECT_EQ(question.answers[0].text, "unanswerable");
}

TEST(Squad, BadQuestionsMayBeSkipped) {
  json file = good();
  json& list = file["data"][0]["paragraphs"][0]["qas"];
  const std::size_t before = list.size();
  json bad = list[0];
  bad["id"] = "";
  bad["question"] = 3;
  list.push_back(bad);
  list.push_back(7);
  const QuestionFile kept = parse_squad(file.dump(), "squad.json", {.skip = true});
  EXPECT_EQ(kept.questions.size(), read(good().dump()).questions.size());
  ASSERT_EQ(kept.skipped.size(), 2U);
  const std::string place = "/data/0/paragraphs/0/qas/" + std::to_string(before);
  EXPECT_EQ(kept.skipped[0].text(),
            place + ", line 1, byte " +
                std::to_string(file.dump().find("{\"answers\"", file.dump().find("q2"))) +
                ": id is empty; question should be a string, is number");
  EXPECT_EQ(kept.skipped[1].source, "squad.json");
  EXPECT_EQ(kept.skipped[1].content, "7");
  EXPECT_EQ(json::parse(kept.skipped[0].content), bad);
  expect_error(
      [&] {
        parse_squad(file.dump(), "squad.json", {true, 1});
      },
      ExitCode::BadData, {"2 bad samples are more than data.max_bad_samples = 1"});
}

// Of a bad context each question is lost, and told.
TEST(Squad, QuestionsOfABadContextAreSkippedOneByOne) {
  json file = good();
  json other = file["data"][0]["paragraphs"][0];
  other["context"] = 7;
  other["qas"][0]["id"] = "q3";
  other["qas"][1]["id"] = "q4";
  other["qas"][1]["question"] = "";
  file["data"][0]["paragraphs"].push_back(other);
  const QuestionFile kept = parse_squad(file.dump(), "squad.json", {.skip = true});
  EXPECT_EQ(kept.questions.size(), 2U);
  ASSERT_EQ(kept.skipped.size(), 2U);
  EXPECT_EQ(kept.skipped[0].place, "/data/0/paragraphs/1/qas/0");
  EXPECT_EQ(kept.skipped[0].reason, "its context should be a string, is number");
  EXPECT_EQ(kept.skipped[1].reason, "its context should be a string, is number; question is empty");
  expect_error(
      [&] {
        parse_squad(file.dump(), "squad.json", {true, 1});
      },
      ExitCode::BadData, {"2 bad samples are more than data.max_bad_samples = 1"});
}

// Nobody knows how many questions are missing there.
TEST(Squad, WhatHoldsQuestionsIsNeverSkipped) {
  const auto refuse = [](const json& file, const std::string& part) {
    expect_error([&] { parse_squad(file.dump(), "squad.json", {.skip = true}); }, ExitCode::BadData,
                 {part, "here it is unknown what would be lost"});
  };
  json file = good();
  file["data"].push_back(3);
  refuse(file, "squad.json: not a SQuAD file: /data/1: should be an object, is number (line 1");
  file = good();
  file["data"][0]["paragraphs"].push_back(nullptr);
  refuse(file, ": /data/0/paragraphs/1: should be an object, is null");
  file = good();
  file["data"][0]["paragraphs"].push_back({{"context", "c"}});
  refuse(file, ": /data/0/paragraphs/1/qas: is missing");
  file["data"][0]["paragraphs"][0]["qas"][0]["id"] = "";
  refuse(file, ": /data/0/paragraphs/1/qas: is missing");  // not among what can be skipped
}

TEST(Squad, AFileWithoutAGoodQuestionIsRefused) {
  json file = good();
  file["data"][0]["paragraphs"][0]["context"] = "";
  expect_error([&] { parse_squad(file.dump(), "squad.json", {.skip = true}); }, ExitCode::BadData,
               {"/data/0/paragraphs/0/context: is empty", "No question is good."});
}

struct Fault {
  std::string name;
  std::string bytes;
  std::string message;
};

// The good file with one value replaced, or removed.
std::string with(const std::string& place, const json& value) {
  json file = good();
  file[json::json_pointer(place)] = value;
  return file.dump();
}

std::string without(const std::string& parent, const std::string& field) {
  json file = good();
  file[json::json_pointer(parent)].erase(field);
  return file.dump();
}

std::vector<Fault> syntax_faults() {
  const std::string text = good().dump(1);
  return {
      {"JsonLines", "{\"q\": 1}\n{\"q\": 2}\n", "give format = \"jsonl\""},
      {"Csv", "question,answer\nq,a\n", "Read as SQuAD, one JSON object with `data`"},
      {"Text", "Once upon a time.\n", "a plain text is a record {\"text\": …}"},
      {"Empty", "", ": is empty"},
      {"Blank", " \n", ": is empty"},
      {"Truncated", text.substr(0, text.size() / 2), "parse error at line 19, column"},
      {"TrailingComma", "{\"data\": [],\n}", "parse error at line 2, column 1: syntax error"},
      {"TwoValues", text + "{}", "expected end of input"},
      {"SingleQuotes", "{'data': []}", "parse error at line 1, column 2"},
      {"BadUtf8", "{\"data\":\n \"\xff\"}", "parse error at line 2, column 3: syntax error"},
      {"Overlong", "{\"data\": \"\xc0\x80\"}", "ill-formed UTF-8 byte"},
      {"Surrogate", R"({"data": "\ud800"})", "surrogate"},
      {"ControlCharacter", "{\"data\": \"\x01\"}", "control character"},
      {"Deep", std::string(100000, '['), "nested deeper than 64 levels"},
      {"DeepInAField",
       with(kQa + "/is_impossible", "@")
           .replace(with(kQa + "/is_impossible", "@").find("\"@\""), 3,
                    std::string(100000, '[') + std::string(100000, ']')),
       "nested deeper than 64 levels"},
      {"NulAfterTheEnd", text + std::string("\0garbage", 8), "a NUL byte at byte"},
      {"Binary", std::string("\0\1\2\3", 4), "parse error at line 1, column 1"},
      {"HugeNumber", "{\"data\": 1e999}", "/data: should be an array, is number"},
  };
}

std::vector<Fault> field_faults() {
  return {
      {"RootType", "[]", "/: should be an object, is array"},
      {"NoData", "{}", "/data: is missing"},
      {"DataType", R"({"data": {}})", "/data: should be an array, is object"},
      {"ArticleType", R"({"data": [3]})", "/data/0: should be an object, is number"},
      {"NoParagraphs", R"({"data": [{}]})", "/data/0/paragraphs: is missing"},
      {"ParagraphType", with(kParagraph, nullptr), kParagraph + ": should be an object, is null"},
      {"NoContext", without(kParagraph, "context"), kParagraph + "/context: is missing"},
      {"ContextType", with(kParagraph + "/context", 7),
       kParagraph + "/context: should be a string, is number"},
      {"EmptyContext", with(kParagraph + "/context", ""), kParagraph + "/context: is empty"},
      {"NoQas", without(kParagraph, "qas"), kParagraph + "/qas: is missing"},
      {"QaType", with(kQa, "?"), kQa + ": should be an object, is string"},
      {"NoId", without(kQa, "id"), kQa + "/id: is missing"},
      {"IdType", with(kQa + "/id", 5), kQa + "/id: should be a string, is number"},
      {"IdTwice", with(kQa + "/id", "q2"),
       "/qas/1/id: \"q2\" occurs twice, first at " + kQa + "/id"},
      {"NoQuestionText", without(kQa, "question"), kQa + "/question: is missing"},
      {"BlankQuestion", with(kQa + "/question", " \t"), kQa + "/question: is empty"},
      {"NoAnswers", without(kQa, "answers"), kQa + "/answers: is missing"},
      {"EmptyAnswers", with(kQa + "/answers", json::array()), kQa + "/answers: is empty"},
      {"AnswersType", with(kQa + "/answers", "Malmö"),
       kQa + "/answers: should be an array, is string"},
      {"AnswerType", with(kAnswer, "Malmö"), kAnswer + ": should be an object, is string"},
      {"NoText", without(kAnswer, "text"), kAnswer + "/text: is missing"},
      {"EmptyText", with(kAnswer + "/text", ""), kAnswer + "/text: is empty"},
      {"NoStart", without(kAnswer, "answer_start"), kAnswer + "/answer_start: is missing"},
      {"StartType", with(kAnswer + "/answer_start", "15"),
       kAnswer + "/answer_start: should be an integer, is string"},
      {"StartFraction", with(kAnswer + "/answer_start", 15.5),
       kAnswer + "/answer_start: should be an integer, is number"},
      {"StartNegative", with(kAnswer + "/answer_start", -1),
       kAnswer + "/answer_start: is -1, outside the context of 21 characters"},
      {"StartBeyond", with(kAnswer + "/answer_start", 21),
       kAnswer + "/answer_start: is 21, outside the context of 21 characters"},
      {"StartHuge", with(kAnswer + "/answer_start", 18446744073709551615U), "outside the context"},
      {"StartWrong", with(kAnswer + "/answer_start", 14),
       kAnswer + "/answer_start: the answer \"Malmö\" is not at character 14 of the "
                 "context, where the text reads \" Malmö…\"; it first occurs at 15"},
      {"NotInContext", with(kAnswer + "/text", "Lund"),
       "reads \"Malm…\"; the context does not contain it"},
      {"Impossible", with(kQa + "/is_impossible", true),
       kQa + "/answers: is not empty, and the question is marked as impossible"},
      {"ImpossibleText", with(kQa + "/is_impossible", "yes"),
       kQa + "/is_impossible: should be true or false, is string"},
  };
}

class SquadFault : public ::testing::TestWithParam<Fault> {};

TEST_P(SquadFault, IsNamedWithItsPlace) {
  expect_error([&] { read(GetParam().bytes); }, ExitCode::BadData,
               {"squad.json: ", GetParam().message});
}

std::string name_of(const ::testing::TestParamInfo<Fault>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Syntax, SquadFault, ::testing::ValuesIn(syntax_faults()), name_of);
INSTANTIATE_TEST_SUITE_P(Fields, SquadFault, ::testing::ValuesIn(field_faults()), name_of);

TEST(Squad, NumbersThatAreNotFiniteAreFineInOtherFields) {
  std::string bytes = good().dump();
  bytes.replace(bytes.rfind('}'), 1, ", \"score\": NaN, \"more\": [-Infinity, 1e999]}");
  EXPECT_EQ(read(bytes).questions.size(), read(good().dump()).questions.size());
}

TEST(Squad, RecordsInAnObjectAreToldTheirForm) {
  const std::string advice = "Records of another kind are one JSON object per line, or one array";
  expect_error([] { read(R"({"data": [{"messages": []}, {"messages": []}]})"); }, ExitCode::BadData,
               {"/data/0/paragraphs: is missing", advice});
  expect_error([] { read(R"({"train": []})"); }, ExitCode::BadData, {"/data: is missing", advice});
}

TEST(Squad, TellsAllFaultsAtOnce) {
  json file = good();
  file["data"][0]["paragraphs"][0]["qas"][0].erase("id");
  file["data"][0]["paragraphs"][0]["qas"][1]["answers"][1]["answer_start"] = 5;
  expect_error([&] { read(file.dump()); }, ExitCode::BadData,
               {"2 faults\n  " + kQa + "/id: is missing (line 1, byte ",
                ")\n  " + kParagraph + "/qas/1/answers/1/answer_start: the answer",
                "data.on_bad_sample = \"skip\""});
}

TEST(Squad, FaultsHaveLinesAndBytes) {
  const std::string text = good().dump(1);
  std::string bad = text;
  bad.replace(bad.find("\"Where?\""), 8, "\"      \"");
  const std::size_t byte = bad.find("\"      \"");
  const auto line = 1 + std::count(bad.begin(), bad.begin() + static_cast<long>(byte), '\n');
  expect_error([&] { read(bad); }, ExitCode::BadData,
               {kQa + "/question: is empty (line " + std::to_string(line) + ", byte " +
                std::to_string(byte) + ")"});
}

// Answers that cannot be looked up are no fault of their own.
TEST(Squad, AnEmptyContextIsOneFault) {
  try {
    read(with(kParagraph + "/context", ""));
    ADD_FAILURE();
  } catch (const sherd::Error& error) {
    EXPECT_EQ(std::string(error.what()).find("answers"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace llm::text
