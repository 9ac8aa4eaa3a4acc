#include "llm/text/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"

namespace llm::text {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using ::testing::HasSubstr;

const std::string kGood = R"({"prompt": "a", "completion": "b"})";

QuestionFile lines(const std::string& bytes, const BadSamplePolicy& policy = {}) {
  return read_records({"my.jsonl", bytes}, {.bad = policy});
}

QuestionFile array(const std::string& bytes, const BadSamplePolicy& policy = {}) {
  return read_records({"my.json", bytes}, {.container = Container::Array, .bad = policy});
}

TEST(Records, LinesMayEndAndBeginInManyWays) {
  const QuestionFile file =
      lines("\xef\xbb\xbf" + kGood + "\r\n\n  \n" + R"({"x": {"prompt": 1}, "completion": "d\n",)" +
            R"( "prompt": "c", "y": [[1]]})");
  ASSERT_EQ(file.questions.size(), 2U);
  EXPECT_EQ(file.questions[0].question, "a");
  EXPECT_EQ(file.questions[0].answers[0].text, "b");
  EXPECT_EQ(file.questions[1].question, "c");
  EXPECT_EQ(file.questions[1].answers[0].text, "d\n");
  EXPECT_EQ(file.questions[1].id, "line 4");
  EXPECT_TRUE(file.questions[1].is_record());
}

TEST(Records, ArraysHoldThemToo) {
  const QuestionFile file =
      array("\n[ " + kGood + ",\n " + R"({"prompt": "]},{\"", "completion": "b"} ])" + "\n");
  ASSERT_EQ(file.questions.size(), 2U);
  EXPECT_EQ(file.questions[1].question, "]},{\"");
  EXPECT_EQ(file.questions[1].id, "record 2");
}

TEST(Records, ColumnsHaveTheNamesOfTheFile) {
  const auto file =
      read_records({"f", R"({"q": "a", "prompt": 3, "a": "b"})"}, {.columns = {"q", "a"}});
  EXPECT_EQ(file.questions[0].question, "a");
  EXPECT_EQ(file.questions[0].answers[0].text, "b");
}

struct Bad {
  const char* name;
  std::string record;
  std::string byte;
  std::string reason;
};

class BadRecords : public testing::TestWithParam<Bad> {};

TEST_P(BadRecords, AreNamedWithPlaceAndReason) {
  const Bad& bad = GetParam();
  const std::string first = kGood + "\n";
  const auto at = [&](std::size_t begin) {
    return "byte " + std::to_string(begin + std::stoul(bad.byte)) + ": ";
  };
  expect_error(
      [&] { lines(first + bad.record); }, ExitCode::BadData,
      {"my.jsonl: line 2, " + at(first.size()), bad.reason, "data.on_bad_sample = \"skip\""});
  const QuestionFile kept = lines(first + bad.record + "\n" + kGood, {.skip = true});
  EXPECT_EQ(kept.questions.size(), 2U);
  EXPECT_EQ(kept.questions[1].id, "line 3");
  ASSERT_EQ(kept.skipped.size(), 1U);
  const auto line = nlohmann::json::parse(to_jsonl(kept.skipped));
  EXPECT_EQ(line["source"], "my.jsonl");
  EXPECT_EQ(line["line"], 2);
  EXPECT_EQ(line["byte"], first.size() + std::stoul(bad.byte));
  EXPECT_THAT(line["reason"].get<std::string>(), HasSubstr(bad.reason));
  const bool is_text = std::string(bad.name) != "NoUtf8";
  EXPECT_EQ(line.value("text", ""), is_text ? bad.record : "");
}

std::string nested(int depth) {
  return R"({"prompt": "a", "completion": "b", "x": )" + std::string(depth, '[') +
         std::string(depth, ']') + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Records, BadRecords,
    testing::Values(
        Bad{"NoJson", "prompt,completion", "0", "not JSON: syntax error"},
        Bad{"CutOff", R"({"prompt": "a", "compl)", "22", "missing closing quote"},
        Bad{"MoreAfterIt", kGood + " x", "35", "not JSON: syntax error"},
        Bad{"NoObject", "[1]", "0", "should be an object, is array"},
        Bad{"Number", "7", "0", "should be an object, is number"},
        Bad{"MissingColumn", R"({"prompt": "a", "answer": "b"})", "0",
            R"(has no "completion"; its columns are "prompt", "answer": name them)"},
        Bad{"NoColumns", "{}", "0", R"(has no "prompt"; its columns are none)"},
        Bad{"NumberForText", R"({"prompt": "a", "completion": 1})", "0",
            R"("completion" should be a string, is number)"},
        Bad{"MessagesForText", R"({"prompt": [{"role": "user"}], "completion": "b"})", "0",
            R"("prompt" should be a string, is array)"},
        Bad{"Null", R"({"prompt": null, "completion": "b"})", "0",
            R"("prompt" should be a string)"},
        Bad{"EmptyCompletion", R"({"prompt": "a", "completion": " \n"})", "0",
            R"("completion" is empty)"},
        Bad{"EmptyPrompt", R"({"prompt": "", "completion": "b"})", "0", R"("prompt" is empty)"},
        Bad{"ColumnTwice", R"({"prompt": "a", "prompt": "c", "completion": "b"})", "0",
            R"(the column "prompt" occurs twice)"},
        Bad{"NoUtf8", "{\"prompt\": \"a\xff\", \"completion\": \"b\"}", "13", "ill-formed UTF-8"},
        Bad{"Nul", std::string("{\"prompt\": \"a\"\0}", 16), "14", "a NUL byte"},
        Bad{"DeeplyNested", nested(100), "0", "nested deeper than 64 levels"}),
    [](const auto& bad) { return bad.param.name; });

TEST(Records, DepthUpToTheLimitIsFine) {
  EXPECT_EQ(lines(nested(60)).questions.size(), 1U);
}

TEST(Records, ALineThatIsTooLongIsBad) {
  const std::string long_one =
      R"({"prompt": "a", "completion": ")" + std::string(std::size_t{17} << 20, 'b') + "\"}";
  expect_error([&] { lines(long_one); }, ExitCode::BadData, {"more than the 16777216"});
}

TEST(Records, OfAnArrayBadOnesAreNumbered) {
  const std::string bytes = "[" + kGood + ", {\"prompt\": 3}, " + kGood + ", ]";
  expect_error([&] { array(bytes); }, ExitCode::BadData,
               {"my.json: 2 faults", "record 2, line 1, byte 37: \"prompt\" should be a string",
                "record 4, line 1, byte 88: not JSON"});
  EXPECT_EQ(array(bytes, {.skip = true}).questions.size(), 2U);
}

TEST(Records, OfAnArrayTheLineOfTheFaultIsTold) {
  const QuestionFile file =
      array("[\n" + kGood + ",\n{\n \"prompt\": 3\n},\n\n{\n \"prompt\": x} ]", {.skip = true});
  ASSERT_EQ(file.skipped.size(), 2U);
  EXPECT_EQ(file.skipped[0].text().substr(0, 26), "record 2, line 3, byte 38:");
  const auto last = nlohmann::json::parse(to_jsonl({file.skipped[1]}));
  EXPECT_EQ(last["record"], 3);
  EXPECT_EQ(last["line"], 8);
  EXPECT_EQ(last["text"], "{\n \"prompt\": x}");
}

TEST(Records, AFileAsAWholeMayBeBad) {
  const BadSamplePolicy skip{.skip = true};
  expect_error([&] { lines("[" + kGood + "]", skip); }, ExitCode::BadData,
               {"begins with '['; give format = \"json\""});
  expect_error([&] { array(kGood, skip); }, ExitCode::BadData, {"begins with '{'; give format"});
  expect_error([&] { array("a", skip); }, ExitCode::BadData, {"does not begin with '['"});
  expect_error([&] { array("[" + kGood, skip); }, ExitCode::BadData, {"has no end"});
  expect_error([&] { array("[" + kGood + "] x", skip); }, ExitCode::BadData,
               {"something follows the array of records, at byte 37"});
}

// One of several files may be: the data set is refused as a whole (data_file_test.cpp).
TEST(Records, AFileMayHoldNone) {
  for (const char* bytes : {"", "\xef\xbb\xbf\n\n"}) {
    EXPECT_TRUE(lines(bytes).questions.empty());
  }
  for (const char* bytes : {"[]", " "}) {
    EXPECT_TRUE(array(bytes).questions.empty());
  }
}

// As Python's json.dumps and Apache Arrow write numbers that are missing, infinite or too large.
TEST(Records, NumbersThatAreNotFiniteAreFineInOtherFields) {
  const std::string start = R"({"prompt": "NaN, 1e999", "completion": "b", "x": )";
  for (const char* value :
       {"NaN", "Infinity", "-Infinity", "1e999", "-1E+999", "[NaN, {\"y\":-Infinity}]"}) {
    const QuestionFile file = lines(start + value + "}");
    ASSERT_EQ(file.questions.size(), 1U) << value;
    EXPECT_EQ(file.questions[0].question, "NaN, 1e999");
  }
  for (const char* value : {"nan", "NaN1", "+Infinity", "1e999x"}) {
    expect_error([&] { lines(start + value + "}"); }, ExitCode::BadData, {"not JSON"});
  }
  const std::string bytes = start + "NaN, \"z\": x}";
  expect_error([&] { lines(bytes); }, ExitCode::BadData,
               {"byte " + std::to_string(bytes.size() - 2) + ": not JSON"});
  expect_error([&] { lines(R"({"prompt": NaN, "completion": "b"})"); }, ExitCode::BadData,
               {"\"prompt\" should be a string, is number"});
}

TEST(Records, SkippingHasACap) {
  std::string bytes = kGood + "\n";
  for (int i = 0; i < 3; ++i) {
    bytes += "bad\n";
  }
  EXPECT_EQ(lines(bytes, {true, 3}).skipped.size(), 3U);
  expect_error(
      [&] {
        lines(bytes, {true, 2});
      },
      ExitCode::BadData,
      {"my.jsonl: 3 bad samples are more than data.max_bad_samples = 2 allows to skip",
       "the first: line 2"});
}

TEST(Records, ALongReasonThatRepeatsIsToldOnce) {
  const std::string other = R"({"dialog": []})";
  expect_error([&] { lines(other + "\n" + other + "\nbad\n" + other + "\n"); }, ExitCode::BadData,
               {"my.jsonl: 4 faults\n  line 1, byte 0: has no \"prompt\"",
                "other kinds have \"messages\" (or columns = { messages = \"…\" })",
                "\n  line 2, byte 15: the same\n  line 3, byte 30: not JSON",
                "\n  line 4, byte 34: has no \"prompt\""});
}

// Ten million bad lines are told like twenty, and need no more memory.
TEST(Records, ManyBadOnesAreCountedAndFewKept) {
  std::string bytes = kGood + "\n";
  for (int i = 0; i < 100000; ++i) {
    bytes += "bad\n";
  }
  expect_error([&] { lines(bytes); }, ExitCode::BadData,
               {"my.jsonl: 100000 faults", "\n  line 21, ", "and 99980 more"});
  // Beyond the cap nothing is read.
  expect_error([&] { lines(bytes, {.skip = true}); }, ExitCode::BadData,
               {"101 bad samples are more than data.max_bad_samples = 100",
                "the rest of the file was not read"});
}

TEST(Records, LongNamesAndTextsAreNotRepeated) {
  const std::string name(1 << 20, 'n');
  const std::string record = "{\"" + name + "\": \"b\"}";
  const QuestionFile file = lines(kGood + "\n" + record, {.skip = true});
  ASSERT_EQ(file.skipped.size(), 1U);
  EXPECT_LT(file.skipped[0].reason.size(), 300U);
  EXPECT_THAT(file.skipped[0].reason, HasSubstr("its columns are \"nnn"));
  EXPECT_EQ(file.skipped[0].content, "");
  const QuestionFile number =
      lines(kGood + "\n{\"x\": 1" + std::string(5000, '0') + "}", {.skip = true});
  EXPECT_LT(number.skipped[0].reason.size(), 300U);
}

TEST(Records, WhatAMessageQuotesCommandsNoTerminal) {
  const QuestionFile file = lines(kGood + "\n{\"\u009b2J\u202E\": \"b\"}", {.skip = true});
  EXPECT_THAT(file.skipped[0].text(), HasSubstr("its columns are \"\\u009b2J\\u202e\""));
}

}  // namespace
}  // namespace llm::text
