// Tokenizer files as a stranger may write them: each is refused with its place, or does no harm.
// None may abort or hang.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "llm/text/tokenizer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace llm::text {
namespace {

using nlohmann::json;
using sherd::ExitCode;
using sherd::test::expect_error;
using sherd::test::TempFolder;

json good_tokenizer() {
  return json::parse(
      sherd::test::bytes_of(sherd::test::data_folder() / "stories260k-hf/tokenizer.json"));
}

// A word-level tokenizer with one component replaced.
json small(const std::string& part, const json& value) {
  json file = {
      {"version", "1.0"},
      {"added_tokens", json::array()},
      {"model",
       {{"type", "WordLevel"}, {"vocab", {{"[UNK]", 0}, {"a", 1}}}, {"unk_token", "[UNK]"}}}};
  file[part] = value;
  return file;
}

json sequence_of(int count, const json& component) {
  return {{"type", "Sequence"},
          {"normalizers", std::vector<json>(static_cast<std::size_t>(count), component)}};
}

json precompiled(const std::string& base64) {
  return {{"type", "Precompiled"}, {"precompiled_charsmap", base64}};
}

json added_token(int id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

std::string refusal_of(const std::string& bytes) {
  const TempFolder folder;
  folder.write("tokenizer.json", bytes);
  try {
    const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
    static_cast<void>(tokenizer.encode("aaaa b c", SpecialTokens::Add));
  } catch (const sherd::Error& error) {
    EXPECT_EQ(error.code(), ExitCode::BadData) << error.what();
    return error.what();
  }
  return "accepted";
}

struct Hostile {
  std::string name;
  std::string bytes;
  std::string refusal;
};

std::vector<Hostile> files() {
  std::vector<Hostile> all;
  const auto add = [&](const std::string& name, const json& file, const std::string& refusal) {
    all.push_back({name, file.dump(), refusal});
  };
  const std::string text = good_tokenizer().dump();
  all.push_back({"empty", "", "tokenizer.json: should hold a JSON object"});
  all.push_back({"truncated", text.substr(0, text.size() / 2), "EOF while parsing"});
  all.push_back({"bad_utf8", "{\"version\": \"\xff\"}", "tokenizer.json: is not UTF-8 at byte 13"});
  all.push_back({"deep", std::string(200000, '['), "should hold a JSON object"});
  all.push_back({"deep_normalizer", "{\"normalizer\":" + std::string(200000, '['),
                 "recursion limit exceeded at line 1 column"});
  all.push_back({"list", "[1, 2]", "should hold a JSON object"});
  add("no_model", {{"version", "1.0"}}, "missing field `model`");
  add("version", small("version", "7"), "Unknown tokenizer version '7'");

  json file = good_tokenizer();
  file["model"]["vocab"] = json::object();
  file["model"]["unk_token"] = nullptr;
  add("empty_vocabulary", file, "at /model/vocab: the vocabulary is empty");
  file = good_tokenizer();
  file["model"]["vocab"]["huge"] = 4294967295U;
  add("huge_id", file, "\"huge\" has id 4294967295; ids end at 16777215 at line 1 column");
  file["model"]["vocab"]["huge"] = -1;
  add("negative_id", file, "invalid value: integer `-1`, expected u64 at line 1 column");
  file["model"]["vocab"]["huge"] = 5;
  add("duplicate_id", file, "id 5 belongs to both");
  file = good_tokenizer();
  file["model"]["merges"].push_back({"qq", "zz"});
  add("unknown_merge", file, "Token `qq` out of vocabulary");
  file["model"]["merges"] = 3;
  add("merges_type", file, "did not match any variant of untagged enum MergeType at line 1 column");
  file = good_tokenizer();
  file["model"]["dropout"] = 0.5;
  add("dropout", file, "at /model/dropout: 0.5: the same text would be encoded differently");
  file["model"]["dropout"] = nullptr;
  file["model"]["unk_token"] = "<nope>";
  add("unknown_unk", file, "at /model/unk_token: \"<nope>\" is not in the vocabulary");
  file["model"]["unk_token"] = "\x1b[31mred\n";
  add("escape_in_message", file, "\"\\u{1b}[31mred\\n\" is not in the vocabulary");

  add("added_gap", small("added_tokens", json::array({added_token(9, "<x>")})),
      "at /added_tokens/0: \"<x>\" should have id 9 and gets 2");
  add("added_taken", small("added_tokens", json::array({added_token(1, "<x>")})),
      "at /added_tokens/0: id 1 belongs to both \"a\" and \"<x>\"");
  add("added_other_id", small("added_tokens", json::array({added_token(2, "a")})),
      "at /added_tokens/0: \"a\" should have id 2 and gets 1");
  add("added_huge", small("added_tokens", json::array({added_token(1 << 30, "<x>")})),
      "at /added_tokens/0: \"<x>\" has id 1073741824");

  // A header that tells of 4 GiB of trie: the crate would ask for 8 GiB and abort.
  add("charsmap_lie", small("normalizer", precompiled("/////wAAAAA=")),
      "at /normalizer/precompiled_charsmap: its header names 4294967295 bytes of trie, and 4 "
      "bytes follow");
  add("charsmap_nested", small("normalizer", sequence_of(1, precompiled("/P///wAAAAA="))),
      "at /normalizer/normalizers/0/precompiled_charsmap: its header names 4294967292 bytes");
  add("charsmap_short", small("normalizer", precompiled("AAA=")), "shorter than its header");
  add("charsmap_base64", small("normalizer", precompiled("???")), "no base64");
  add("charsmap_type", small("normalizer", {{"type", "Precompiled"}}),
      "is missing or not a string");
  add("charsmap_outside", small("normalizer", precompiled("BAAAAP////8=")),
      "it failed: index out of bounds");

  add("many_normalizers", small("normalizer", sequence_of(50000, {{"type", "NFC"}})),
      "at /normalizer: holds 50001 components; at most 1024 are read");
  const json tenfold = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}};
  add("replace_bomb", small("normalizer", sequence_of(30, tenfold)),
      "at /normalizer/normalizers/2: a text would become more than 256 times longer");
  add("byte_level_bomb", small("normalizer", sequence_of(60, {{"type", "ByteLevel"}})),
      "a text would become more than 256 times longer");
  const json text_piece = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json special_piece = {{"SpecialToken", {{"id", "a"}, {"type_id", 0}}}};
  json tokens = {{"a",
                  {{"id", "a"},
                   {"ids", std::vector<int>(300, 1)},
                   {"tokens", std::vector<std::string>(300, "a")}}}};
  json processor = {{"type", "TemplateProcessing"},
                    {"single", {text_piece, text_piece}},
                    {"pair", json::array()},
                    {"special_tokens", tokens}};
  add("template_twice", small("post_processor", processor),
      "at /post_processor/single: holds the text 2 times instead of once");
  processor["single"] = {special_piece, text_piece};
  add("template_tokens", small("post_processor", processor), "adds more than 256 tokens");

  add("unknown_normalizer", small("normalizer", {{"type", "Nonsense"}}),
      "untagged enum NormalizerUntagged");
  const auto split = [](const std::string& regex) {
    return json{{"type", "Split"},
                {"pattern", {{"Regex", regex}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  };
  add("bad_regex", small("pre_tokenizer", split("(")), "end pattern with unmatched parenthesis");
  add("deep_regex",
      small("pre_tokenizer", split(std::string(100000, '(') + "a" + std::string(100000, ')'))),
      "parse depth limit over");
  add("zero_length", small("pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}),
      "it failed: chunk size must be non-zero");
  add("unigram_empty",
      small("model", {{"type", "Unigram"}, {"vocab", json::array()}, {"unk_id", 0}}),
      "at /model/vocab: the vocabulary is empty");
  add("unigram_unk",
      small(
          "model",
          {{"type", "Unigram"}, {"vocab", json::array({json::array({"a", -1.0})})}, {"unk_id", 7}}),
      "UnkIdNotInVocabulary");
  return all;
}

class HostileTokenizer : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileTokenizer, IsRefusedWithItsPlace) {
  testing::internal::CaptureStderr();
  const std::string refusal = refusal_of(GetParam().bytes);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "a panic spoke";
  EXPECT_THAT(refusal, ::testing::HasSubstr(GetParam().refusal));
  for (const char c : refusal) {
    EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20U) << "control character in: " << refusal;
  }
  EXPECT_LT(refusal.size(), 2000U);
}

INSTANTIATE_TEST_SUITE_P(Files, HostileTokenizer, ::testing::ValuesIn(files()),
                         [](const auto& param) { return param.param.name; });

TEST(HostileTokenizers, PaddingAndTruncationOfTheFileAreIgnored) {
  json file = good_tokenizer();
  file["padding"] = {{"strategy", {{"Fixed", 4000000000U}}},
                     {"direction", "Right"},
                     {"pad_to_multiple_of", nullptr},
                     {"pad_id", 0},
                     {"pad_type_id", 0},
                     {"pad_token", "<unk>"}};
  file["truncation"] = {
      {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}, {"direction", "Right"}};
  const TempFolder folder;
  folder.write("tokenizer.json", file.dump());
  EXPECT_EQ(Tokenizer::from_folder(folder.path()).encode("a a a").ids,
            (std::vector<TokenId>{1, 261, 261, 261}));
}

TEST(HostileTokenizers, ACatastrophicPatternEnds) {
  json file = small("pre_tokenizer", {{"type", "Split"},
                                      {"pattern", {{"Regex", "(a+)+$"}}},
                                      {"behavior", "Isolated"},
                                      {"invert", false}});
  const TempFolder folder;
  folder.write("tokenizer.json", file.dump());
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  expect_error([&] { static_cast<void>(tokenizer.encode(std::string(60, 'a') + "b")); },
               ExitCode::BadData, {"retry"});
}

TEST(HostileTokenizers, APipeOrADeviceIsNotWaitedFor) {
  const TempFolder folder;
  const auto path = folder.path() / "tokenizer.json";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  expect_error([&] { Tokenizer::from_folder(folder.path()); }, ExitCode::BadData,
               {"tokenizer.json: expected a regular file, found a pipe"});
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/zero", path);
  expect_error([&] { Tokenizer::from_folder(folder.path()); }, ExitCode::BadData,
               {"tokenizer.json: expected a regular file, found a device"});
}

TEST(HostileTokenizers, AHugeFileIsNotRead) {
  const TempFolder folder;
  std::filesystem::resize_file(folder.write("tokenizer.json", "{"), std::uintmax_t{129} << 20U);
  expect_error([&] { Tokenizer::from_folder(folder.path()); }, ExitCode::BadData,
               {"tokenizer.json: 135266304 bytes; expected at most 128 MiB"});
}

}  // namespace
}  // namespace llm::text
