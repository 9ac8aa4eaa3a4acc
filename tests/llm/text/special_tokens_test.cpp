#include "llm/text/special_tokens.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "llm/text/tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;

std::optional<std::int32_t> id_of(const std::string& token) {
  if (token == "<s>") {
    return 1;
  }
  return token == "</s>" ? std::optional(2) : std::nullopt;
}

TEST(SpecialTokens, AFolderWithoutThemSaysNothing) {
  const TempFolder folder;
  const SpecialIds special = read_special_ids(folder.path(), id_of);
  EXPECT_EQ(special.end, std::nullopt);
  EXPECT_TRUE(special.stop.empty());
}

TEST(SpecialTokens, TheTokenizersOwnFilesGoFirst) {
  const TempFolder folder;
  folder.write("config.json", R"({"eos_token_id": 8})");
  EXPECT_EQ(read_special_ids(folder.path(), id_of).end, 8);
  folder.write("generation_config.json", R"({"eos_token_id": [9, 5]})");
  EXPECT_EQ(read_special_ids(folder.path(), id_of).end, 9);  // the first that stops
  folder.write("special_tokens_map.json", R"({"eos_token": "<s>"})");
  EXPECT_EQ(read_special_ids(folder.path(), id_of).end, 1);
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "</s>"}})");
  const SpecialIds special = read_special_ids(folder.path(), id_of);
  EXPECT_EQ(special.end, 2);
  EXPECT_EQ(special.stop, (std::vector<std::int32_t>{2, 5, 9}));
}

TEST(SpecialTokens, FaultsAreNamed) {
  const TempFolder folder;
  const auto expect_fault = [&](const std::string& file, const std::string& text,
                                const std::string& message) {
    folder.write(file, text);
    expect_error([&] { read_special_ids(folder.path(), id_of); }, ExitCode::BadData,
                 {file, message});
    std::filesystem::remove(folder.path() / file);
  };
  expect_fault("tokenizer_config.json", R"({"eos_token": "<end>"})",
               "/eos_token: \"<end>\" is not in the vocabulary");
  expect_fault("tokenizer_config.json", R"({"eos_token": 3})", "/eos_token: should be a token");
  expect_fault("tokenizer_config.json", R"({"eos_token": {"content": 3}})",
               "/eos_token: should be a token");
  expect_fault("special_tokens_map.json", "[]", "expected a JSON object, found array");
  expect_fault("generation_config.json", "{", "parse error at line 1, column 2");
  expect_fault("config.json", R"({"eos_token_id": "2"})",
               "/eos_token_id: should be an id or a list of ids, is \"2\"");
  expect_fault("config.json", R"({"eos_token_id": [2, -1]})", "/eos_token_id: should be an id");
  expect_fault("config.json", R"({"eos_token_id": 4294967296})", "/eos_token_id: should be an id");
}

TEST(SpecialTokens, FilesThatWouldHangOrCrashAreRefused) {
  const TempFolder folder;
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  for (const auto& [name, field] : {std::pair{"tokenizer_config.json", "eos_token"},
                                    {"special_tokens_map.json", "eos_token"},
                                    {"generation_config.json", "eos_token_id"},
                                    {"config.json", "eos_token_id"}}) {
    const auto path = folder.write(name, "{\"" + std::string(field) + "\": " + deep + "}");
    expect_error([&] { read_special_ids(folder.path(), id_of); }, ExitCode::BadData,
                 {name, "nested deeper than 64 levels"});
    std::filesystem::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_error([&] { read_special_ids(folder.path(), id_of); }, ExitCode::BadData,
                 {name, "expected a regular file, found a pipe"});
    std::filesystem::remove(path);
    std::filesystem::create_symlink("/dev/zero", path);
    expect_error([&] { read_special_ids(folder.path(), id_of); }, ExitCode::BadData,
                 {name, "expected a regular file, found a device"});
    std::filesystem::remove(path);
  }
}

TEST(SpecialTokens, ConfigIsReadByTheRulesOfTheModel) {
  const TempFolder folder;
  folder.write("config.json", R"({"eos_token_id": 1, "eos_token_id": 2})");
  expect_error([&] { read_special_ids(folder.path(), id_of); }, ExitCode::BadData,
               {"config.json: field \"eos_token_id\" occurs twice"});
}

TEST(SpecialTokens, TheEndTokenIsAskedForOnlyWhenNeeded) {
  const TempFolder folder;
  std::filesystem::copy(sherd::test::data_folder() / "stories260k-hf/tokenizer.json",
                        folder.path());
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  EXPECT_TRUE(tokenizer.stop_ids().empty());
  expect_error([&] { static_cast<void>(tokenizer.end_id()); }, ExitCode::BadData,
               {folder.path().string(), "no token that ends an answer", "generation_config.json"});
}

}  // namespace
}  // namespace llm::text
