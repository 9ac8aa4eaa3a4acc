#include "llm/io/export.h"

#include <nlohmann/json.hpp>

#include "llm/io/hf_config.h"
#include "sherd/fully_shard.h"
#include "tests/llm/io/model_folders.h"

namespace llm::io {
namespace {

using Json = nlohmann::ordered_json;

TEST(Export, CopiesTheConfigWithItsDtypeAndTheTokenizer) {
  const std::string source = kData + "stories260k-hf/";
  const TemporaryFolder out;
  copy_config_and_tokenizer(source, out.path(), at::kBFloat16);
  Json expected = Json::parse(read_all(source + "config.json"));
  expected["torch_dtype"] = "bfloat16";
  EXPECT_EQ(Json::parse(read_all(out / "config.json")).dump(), expected.dump());
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "special_tokens_map.json", "LICENSE"}) {
    EXPECT_EQ(read_all(out / name), read_all(source + name)) << name;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(out.path()), {}), 6);
}

// A licence asks that its files are passed on.
TEST(Export, TakesTheFilesOfTheLicenceAlong) {
  const TemporaryFolder source;
  write_all(source / "config.json", "{}");
  for (const char* name : {"LICENSE.txt", "Notice", "USE_POLICY.md", "README.md", "train.py"}) {
    write_all(source / name, name);
  }
  std::filesystem::create_directory(source / "LICENSES");
  EXPECT_EQ(copied_files(source.path()),
            (std::vector<std::string>{"LICENSE.txt", "Notice", "README.md", "USE_POLICY.md"}));
  write_all(source / "COPYING", "");
  write_all(source / "MODEL_LICENSE", "");
  write_all(source / "LICENSES/MIT.txt", "MIT");
  std::filesystem::create_directories(source / "additional_chat_templates/more");
  write_all(source / "additional_chat_templates/tool_use.jinja", "{{ x }}");
  EXPECT_EQ(copied_files(source.path()),
            (std::vector<std::string>{"COPYING", "LICENSE.txt", "MODEL_LICENSE", "Notice",
                                      "README.md", "USE_POLICY.md", "LICENSES/MIT.txt",
                                      "additional_chat_templates/tool_use.jinja"}));
  const TemporaryFolder out;
  copy_config_and_tokenizer(source.path(), out.path(), at::kFloat);
  EXPECT_EQ(read_all(out / "LICENSES/MIT.txt"), "MIT");
  EXPECT_EQ(read_all(out / "additional_chat_templates/tool_use.jinja"), "{{ x }}");
  std::filesystem::create_symlink("/etc/passwd", source / "LICENSES/other");
  expect_error([&] { static_cast<void>(copied_files(source.path())); }, sherd::ExitCode::BadData,
               "LICENSES/other: links to /etc/passwd");
}

TEST(Export, WhatIsCopiedIsCountedBeforehand) {
  const TemporaryFolder source;
  write_all(source / "config.json", "{}");
  write_all(source / "LICENSE", "12345");
  write_all(source / "tokenizer.json", "{}");
  EXPECT_EQ(copied_bytes(source.path()), 7);
  std::filesystem::resize_file(source / "LICENSE", (std::uintmax_t{128} << 20) + 1);
  expect_error([&] { static_cast<void>(copied_bytes(source.path())); }, sherd::ExitCode::BadData,
               "LICENSE: has 134217729 bytes, more than the 134217728 of a file that is copied");
  std::filesystem::remove(source / "LICENSE");
  std::filesystem::create_directory(source / "vocab.json");
  expect_error([&] { static_cast<void>(copied_bytes(source.path())); }, sherd::ExitCode::BadData,
               "vocab.json");
}

// What was learned as the end of an answer stops generation.
TEST(Export, NamesTheStopTokenAndTheTemplateOfAChat) {
  const TemporaryFolder source, out;
  write_all(source / "config.json", R"({"eos_token_id": 2, "torch_dtype": "float32"})");
  write_all(source / "generation_config.json", R"({"eos_token_id": [2, 7], "max_length": 9})");
  write_all(source / "tokenizer_config.json", R"({"eos_token": "</s>", "chat_template": "old"})");
  write_all(source / "special_tokens_map.json",
            R"({"eos_token": {"content": "</s>", "lstrip": false}})");
  copy_config_and_tokenizer(source.path(), out.path(), at::kFloat,
                            ExportedChat{"<|im_end|>", 7, "{{ messages }}"});
  const auto read = [&](const char* name) { return Json::parse(read_all(out / name)); };
  EXPECT_EQ(read("config.json")["eos_token_id"], 7);
  EXPECT_EQ(read("generation_config.json").dump(), R"({"eos_token_id":[7,2],"max_length":9})");
  EXPECT_EQ(read("tokenizer_config.json").dump(), R"({"eos_token":"<|im_end|>"})");
  EXPECT_EQ(read("special_tokens_map.json").dump(),
            R"({"eos_token":{"content":"<|im_end|>","lstrip":false}})");
  EXPECT_EQ(read_all(out / "chat_template.jinja"), "{{ messages }}");
}

TEST(Export, KeepsTheSpellingOfTheDtype) {
  const TemporaryFolder source, out;
  write_all(source / "config.json", read_all(kData + "tiny-llama3-hf/config.v5.json"));
  copy_config_and_tokenizer(source.path(), out.path(), at::kFloat);
  const Json config = Json::parse(read_all(out / "config.json"));
  EXPECT_EQ(config["dtype"], "float32");
  EXPECT_FALSE(config.contains("torch_dtype"));
  EXPECT_EQ(read_hf_config(out / "config.json").dtype, at::kFloat);
}

TEST(Export, FollowsNoLinkOutOfTheModelFolder) {
  const TemporaryFolder source, out;
  write_all(source / "config.json", read_all(kData + "stories260k-hf/config.json"));
  write_all(source / "tokenizer.json", "{}");
  std::filesystem::create_symlink("tokenizer.json", source / "vocab.json");
  EXPECT_EQ(copied_files(source.path()),
            (std::vector<std::string>{"tokenizer.json", "vocab.json"}));
  std::filesystem::create_symlink("/etc/passwd", source / "chat_template.jinja");
  const auto refuse = [&] { copy_config_and_tokenizer(source.path(), out.path(), at::kFloat); };
  expect_error(refuse, sherd::ExitCode::BadData,
               source / "chat_template.jinja" + ": links to /etc/passwd, outside of its folder");
  EXPECT_TRUE(std::filesystem::is_empty(out.path()));
  std::filesystem::remove(source / "chat_template.jinja");
  std::filesystem::remove(source / "config.json");
  std::filesystem::create_symlink(kData + "stories260k-hf/config.json", source / "config.json");
  expect_error(refuse, sherd::ExitCode::BadData, "config.json: links to ");
}

TEST(Export, AnUnwritableFolderIsTold) {
  expect_error([] { copy_config_and_tokenizer(kData + "stories260k-hf", "/nowhere", at::kFloat); },
               sherd::ExitCode::CannotWrite, "/nowhere/");
}

TEST(Export, TensorsAreCalledAsParametersAndATiedHeadHasNone) {
  const auto config = read_model_folder_config(kData + "stories260k-hf");
  const auto model = sherd::on_meta([&] { return build_model(config); });
  const auto specs = export_specs(*model, at::kHalf);
  EXPECT_EQ(specs.size(), 5 * 9 + 2);
  for (const auto& spec : specs) {
    EXPECT_NE(spec.name, "lm_head.weight");
    EXPECT_EQ(spec.dtype, at::kHalf);
  }
}

TEST(Export, BloomHasTheNamesThatTransformersSaves) {
  const auto config = read_model_folder_config(kData + "tiny-bloom-hf");
  const auto model = sherd::on_meta([&] { return build_model(config); });
  const sherd::SafetensorsFile source(kData + "tiny-bloom-hf/model.safetensors");
  const auto specs = export_specs(*model, at::kFloat);
  EXPECT_EQ(specs.size(), source.entries().size());
  for (const auto& spec : specs) {
    ASSERT_TRUE(source.contains(spec.name)) << spec.name;
    EXPECT_EQ(source.find(spec.name)->shape, spec.shape);
  }
}

}  // namespace
}  // namespace llm::io
