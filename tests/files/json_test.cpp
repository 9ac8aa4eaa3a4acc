#include "files/json.h"

#include <gtest/gtest.h>

#include "files/input.h"
#include "tests/files/odd_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace sherd::files {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using test::expect_error;
using test::TempFolder;

void refuses(const std::string& text, const std::string& message,
             RepeatedFields repeated = RepeatedFields::LastCounts) {
  expect_error([&] { (void)parse_json(text, "x.json", repeated); }, ExitCode::BadData,
               {"x.json: " + message});
}

TEST(Json, KeepsTheOrderOfFieldsIfAsked) {
  const std::string text = R"({"z": 1, "a": {"y": 2, "b": 3}})";
  EXPECT_EQ(parse_json<ordered_json>(text, "").dump(), R"({"z":1,"a":{"y":2,"b":3}})");
  EXPECT_EQ(parse_json(text, "").dump(), R"({"a":{"b":3,"y":2},"z":1})");
}

TEST(Json, NamesThePlaceOfEveryFault) {
  refuses("", "is empty");
  refuses(" \n\t\r", "is empty");
  refuses("{\n  \"a\": 1,\n}", "not JSON: parse error at line 3, column 1: syntax error");
  refuses(R"({"a": 1e999})", "not JSON: number overflow");
  refuses("{\"a\": \"\xff\"}", "not JSON: parse error at line 1, column 8");
  refuses("{'a': 1}", "not JSON: parse error at line 1, column 2");
  refuses("\xef\xbb\xbf", "not JSON");
}

TEST(Json, QuotesNoPagesOfTheFile) {
  try {
    (void)parse_json("{\"" + std::string(100'000, 'x'), "x.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 400U);
  }
}

TEST(Json, EndsWhereTheTextEnds) {
  EXPECT_EQ(parse_json("{} \n", ""), json::object());
  refuses("{} {}", "not JSON: parse error at line 1, column 4");
  refuses("{}x", "not JSON: parse error at line 1, column 3");
  refuses(std::string("{}\0", 3), "not JSON: a NUL byte at byte 2");
  refuses(std::string("{}\n\0garbage", 11), "not JSON: a NUL byte at byte 3");
  refuses(std::string("{\"a\0\": 1}", 9), "not JSON");
  refuses(std::string("\0", 1), "not JSON");
}

TEST(Json, IsNotNestedWithoutBound) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth), "").is_array());
  refuses(nested(kMaxJsonDepth + 1), "nested deeper than 64 levels");
  refuses(std::string(1 << 20, '['), "nested deeper than 64 levels");
  std::string objects;
  for (int depth = 0; depth < 100'000; ++depth) {
    objects += "{\"a\":";
  }
  refuses(objects + "1" + std::string(100'000, '}'), "nested deeper than 64 levels");
  std::string wide = "[";  // depth counts, not length
  for (int i = 0; i < 1000; ++i) {
    wide += "[1],";
  }
  EXPECT_EQ(parse_json(wide + "2]", "").size(), 1001U);
}

TEST(Json, NamesAFieldThatOccursTwice) {
  EXPECT_EQ(parse_json(R"({"a": 1, "a": 2})", "").at("a"), 2);
  refuses(R"({"a": 1, "a": 2})", "field \"a\" occurs twice", RepeatedFields::Refuse);
  refuses(R"([{"b": {"a": 1, "c": 1, "a": 2}}])", "field \"a\" occurs twice",
          RepeatedFields::Refuse);
  EXPECT_EQ(parse_json(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "", RepeatedFields::Refuse)
                .size(),
            2U);
}

TEST(Json, FilesAreNamedAndBounded) {
  const TempFolder folder;
  const std::string path = folder.write("config.json", R"({"a": 1})");
  EXPECT_EQ(read_json(path, 8).at("a"), 1);
  EXPECT_EQ(read_json_object<ordered_json>(path).at("a"), 1);
  expect_error([&] { (void)read_json(path, 7); }, ExitCode::BadData,
               {path + ": 8 bytes; expected at most 7 bytes"});
  folder.write("config.json", "[1]");
  expect_error([&] { (void)read_json_object(path); }, ExitCode::BadData,
               {path + ": expected a JSON object, found array"});
  folder.write("config.json", std::string((16U << 20U) + 1, ' '));
  expect_error([&] { (void)read_json_object(path); }, ExitCode::BadData,
               {path + ": 16777217 bytes; expected at most 16 MiB"});
  std::filesystem::remove(path);
  expect_error([&] { (void)read_json_object(path); }, ExitCode::InputMissing,
               {path + ": cannot be opened: No such file or directory"});
  std::filesystem::create_directory(path);
  expect_error([&] { (void)read_json_object(path); }, ExitCode::BadData,
               {path + ": expected a regular file, found a folder"});
}

}  // namespace
}  // namespace sherd::files
