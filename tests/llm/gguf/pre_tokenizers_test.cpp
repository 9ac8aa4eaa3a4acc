#include "llm/gguf/pre_tokenizers.h"

#include "tests/llm/io/model_folders.h"
#include "tests/support/test_data.h"

namespace llm::gguf {
namespace {

using Json = nlohmann::json;

Json split_by(const std::string& pattern) {
  const auto step = Json(pre_tokenizer_named("qwen2"));
  Json changed = step;
  changed["pretokenizers"][0]["pattern"]["Regex"] = pattern;
  return changed;
}

TEST(PreTokenizer, HasTheNameOfItsExpression) {
  for (const char* name : {"gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "gpt-4o", "bloom"}) {
    EXPECT_EQ(pre_name(Json(pre_tokenizer_named(name)), "t"), name);
  }
  EXPECT_EQ(pre_name(Json(pre_tokenizer_named("deepseek-r1-qwen")), "t"), "qwen2");
  EXPECT_TRUE(pre_tokenizer_named("none-of-them").is_null());
}

TEST(PreTokenizer, IsRefusedWithItsExpressionWhereItIsNotKnown) {
  io::expect_error([] { static_cast<void>(pre_name(split_by("\\p{L}+|x"), "dir/tokenizer.json")); },
                   sherd::ExitCode::BadData,
                   R"(dir/tokenizer.json: "pre_tokenizer" cuts texts by "\\p{L}+|x", which )"
                   "llama.cpp would cut otherwise. Known are gpt-2, smollm, qwen2");
  io::expect_error(
      [] {
        static_cast<void>(pre_name(Json({{"type", "Whitespace"}}), "t"));
      },
      sherd::ExitCode::BadData, R"(cuts texts by {"type":"Whitespace"})");
  Json prefixed = Json(pre_tokenizer_named("gpt-2"));
  prefixed["add_prefix_space"] = true;
  io::expect_error([&] { static_cast<void>(pre_name(prefixed, "t")); }, sherd::ExitCode::BadData,
                   "\"add_prefix_space\":true");
}

// Those of published models.
TEST(PreTokenizer, OfLlama3AndQwenIsKnown) {
  SHERD_NEEDS_EXTRA_DATA("llama3-tokenizer");
  const auto pre_of = [](const std::string& folder) {
    const std::string path = *sherd::test::extra_data(folder) / "tokenizer.json";
    return pre_name(Json::parse(io::read_all(path)).at("pre_tokenizer"), path);
  };
  EXPECT_EQ(pre_of("llama3-tokenizer"), "llama-bpe");
  EXPECT_EQ(pre_of("gguf/qwen2/folder"), "qwen2");
}

}  // namespace
}  // namespace llm::gguf
