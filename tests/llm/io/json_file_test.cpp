#include "llm/io/json_file.h"

#include "tests/llm/io/model_folders.h"

namespace llm::io {
namespace {

class JsonFileTest : public testing::Test {
 protected:
  void refuses(const std::string& content, const std::string& message) {
    write_all(path(), content);
    expect_error([&] { (void)read_json_object(path()); }, sherd::ExitCode::BadData,
                 path() + ": " + message);
  }
  [[nodiscard]] std::string path() const { return folder_ / "config.json"; }
  TemporaryFolder folder_;
};

TEST_F(JsonFileTest, KeepsTheOrderOfFields) {
  write_all(path(), R"({"z": 1, "a": {"y": 2, "b": 3}})");
  EXPECT_EQ(read_json_object(path()).dump(), R"({"z":1,"a":{"y":2,"b":3}})");
}

TEST_F(JsonFileTest, NamesThePlaceOfEveryFault) {
  refuses("", "not JSON");
  refuses("{\n  \"a\": 1,\n}",
          "not JSON: [json.exception.parse_error.101] parse error at line 3, column 1");
  refuses("[1]", "expected a JSON object, found array");
  refuses(R"({"a": 1, "a": 2})", "field \"a\" occurs twice");
  refuses(R"({"a": 1e999})", "not JSON");
  refuses("{\"a\": \"\xff\"}", "not JSON");
  refuses(std::string((16U << 20U) + 1, ' '), "16777217 bytes; expected at most 16 MiB");
  refuses(std::string(1 << 20, '['), "not JSON");
}

TEST_F(JsonFileTest, MissingAndUnreadableFiles) {
  expect_error([&] { (void)read_json_object(path()); }, sherd::ExitCode::InputMissing,
               path() + ": no such file");
  std::filesystem::create_directory(path());
  expect_error([&] { (void)read_json_object(path()); }, sherd::ExitCode::BadData,
               path() + ": not a regular file");
}

}  // namespace
}  // namespace llm::io
