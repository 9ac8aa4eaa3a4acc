// From GGUF files to model folders: those of gguf/ in SHERD_TEST_DATA, and wrong ones.

#include <limits>

#include <ATen/TensorOperators.h>
#include <nlohmann/json.hpp>

#include "llm/gguf/gguf_file.h"
#include "llm/gguf/import_gguf.h"
#include "llm/io/hf_config.h"
#include "llm/text/chat_template.h"
#include "llm/text/tokenizer.h"
#include "sherd/safetensors.h"
#include "tests/llm/gguf/gguf_bytes.h"
#include "tests/llm/io/model_folders.h"
#include "tests/support/test_data.h"

namespace llm::gguf {
namespace {

namespace fs = std::filesystem;
using ImportJson = nlohmann::ordered_json;
using io::expect_error;
using io::read_all;
using io::TemporaryFolder;
using io::write_all;

std::string data_model(const std::string& name) {
  return *sherd::test::extra_data("gguf") / name / "model.gguf";
}

class GgufImport : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, GgufImport, testing::Values("llama", "qwen2"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(GgufImport, GivesTheFolderThatTheFileMeans) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  const std::string expected = *sherd::test::extra_data("gguf") / GetParam() / "folder";
  const TemporaryFolder out;
  const ImportOutcome outcome = import_gguf({data_model(GetParam()), out / "model"});
  EXPECT_EQ(outcome.architecture, GetParam());
  const sherd::SafetensorsFolder made(out / "model"), listed(expected);
  EXPECT_EQ(made.names(), listed.names());
  EXPECT_EQ(outcome.tensors, std::ssize(listed.names()));
  for (const std::string& name : listed.names()) {
    const auto one = made.find(name), other = listed.find(name);
    ASSERT_TRUE(one) << name;
    EXPECT_EQ(one->entry->dtype, other->entry->dtype) << name;
    EXPECT_TRUE(at::equal(one->file->read(*one->entry), other->file->read(*other->entry))) << name;
  }
  const auto one = io::read_model_folder_config(out / "model");
  const auto other = io::read_model_folder_config(expected);
  EXPECT_EQ(one.family, other.family);
  EXPECT_EQ(one.dtype, other.dtype);
  EXPECT_EQ(one.shape.norm_epsilon, other.shape.norm_epsilon);
  EXPECT_EQ(one.shape.rope->theta, other.shape.rope->theta);
  EXPECT_TRUE(at::equal(model::rope_frequencies(*one.shape.rope, one.shape.head_size),
                        model::rope_frequencies(*other.shape.rope, other.shape.head_size)));
  EXPECT_EQ(one.shape.tied_embedding, other.shape.tied_embedding);
  EXPECT_EQ(one.shape.context_length, other.shape.context_length);
  const auto ids = ImportJson::parse(read_all(out / "model/config.json")).at("eos_token_id");
  EXPECT_EQ(ids, ImportJson::parse(read_all(expected + "/config.json")).at("eos_token_id"));
}

// The tokenizer of the llama file is that of stories260k-hf, by its original scores.
TEST(ImportedTokenizer, GivesTheSameIds) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  const TemporaryFolder out;
  import_gguf({data_model("llama"), out / "llama"});
  import_gguf({data_model("qwen2"), out / "qwen2"});
  const std::string qwen2 = *sherd::test::extra_data("gguf/qwen2/folder");
  const auto compare = [](const std::string& one, const std::string& other) {
    const auto a = text::Tokenizer::from_folder(one), b = text::Tokenizer::from_folder(other);
    for (const char* words : {"", " ", "Once upon a time, there was a little girl named Lily.",
                              "don't  I'M 1990", "caf\u00e9 cafe\u0301 \u4e16\u754c \U0001F642",
                              "a\tb\n\n\nc  d", "<|im_start|>user\nHi<|im_end|>"}) {
      EXPECT_EQ(a.encode(words).ids, b.encode(words).ids) << words;
    }
    EXPECT_EQ(a.end_id(), b.end_id());
  };
  compare(out / "llama", io::kData + "stories260k-hf");
  compare(out / "qwen2", qwen2);
  EXPECT_EQ(text::ChatTemplate::from_folder(out / "qwen2")->source(),
            text::ChatTemplate::from_folder(qwen2)->source());
}

TEST(ImportedTokenizer, BeginsTextsWhereLlamaCppDoes) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  const TemporaryFolder made;
  write_edited(data_model("qwen2"), made / "silent.gguf", {"tokenizer.ggml.add_bos_token"});
  write_edited(made / "silent.gguf", made / "named.gguf",
               {"tokenizer.ggml.bos_token_id", uint32_value(509)});
  for (const auto& [pre, begins] :
       {std::pair("qwen2", false), {"llama-bpe", true}, {"llama-v3", true}, {"tekken", true}}) {
    const std::string file = made / (std::string(pre) + ".gguf");
    write_edited(made / "named.gguf", file, {"tokenizer.ggml.pre", text_value(pre)});
    import_gguf({file, made / pre});
    const auto ids = text::Tokenizer::from_folder(made / pre).encode("a").ids;
    EXPECT_EQ(ids.front() == 509, begins) << pre;
  }
}

void expect_not_imported(const Edit& edit, const std::string& message,
                         const std::string& model = "llama") {
  const TemporaryFolder made;
  write_edited(data_model(model), made / "edited.gguf", edit);
  expect_error(
      [&] {
        import_gguf({made / "edited.gguf", made / "out"});
      },
      sherd::ExitCode::BadData, message);
  EXPECT_EQ(std::distance(fs::directory_iterator(made.path()), {}), 1) << message;
}

TEST(GgufImportFault, RefusesKeysThatAreWrongOrNotImplemented) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  expect_not_imported({"general.architecture", text_value("mamba")},
                      "\"general.architecture\" is \"mamba\", only llama, qwen2, qwen3, phi3");
  expect_not_imported({"split.count", uint32_value(3)}, "is one of 3 parts of a model");
  expect_not_imported({"llama.expert_count", uint32_value(8)},
                      "the key \"llama.expert_count\" is not implemented");
  expect_not_imported({"tokenizer.ggml.new_thing", bool_value(true)},
                      "the key \"tokenizer.ggml.new_thing\" is not implemented");
  expect_not_imported({"llama.block_count"}, "the key \"llama.block_count\" is missing");
  expect_not_imported({"llama.block_count", uint32_value(0)}, "must be at least 1, found 0");
  expect_not_imported({"llama.block_count", text_value("2")}, "must be a whole number");
  expect_not_imported({"llama.block_count", uint32_value(3)},
                      "the tensor of parameter \"model.layers.2");
  expect_not_imported({"llama.block_count", uint32_value(1)},
                      "is not one of a model of these keys");
  expect_not_imported({"llama.attention.head_count", uint32_value(8)},
                      "has shape [32,32], and a model of these keys has [64,32]");
  expect_not_imported({"llama.attention.value_length", uint32_value(16)},
                      "\"llama.attention.value_length\" is not \"attention.key_length\"");
  expect_not_imported({"llama.rope.dimension_count", uint32_value(4)},
                      "\"llama.rope.dimension_count\" is not the size of a head, 8");
  expect_not_imported({"llama.rope.scaling.type", text_value("longrope")},
                      "is \"longrope\", only none, linear and yarn are read");
  expect_not_imported({"llama.rope.scaling.factor", float32_value(0)},
                      "edited.gguf: its keys mean a config.json with \"rope_scaling.factor\"");
  expect_not_imported({"tokenizer.ggml.model", text_value("t5")},
                      "\"tokenizer.ggml.model\" is \"t5\", only \"gpt2\" and \"llama\" are read");
  expect_not_imported({"tokenizer.ggml.token_type", int32s_value({1})},
                      "\"tokenizer.ggml.token_type\" has 1 items, and there are 512 tokens");
  expect_not_imported({"tokenizer.ggml.scores", float32s_value({1})},
                      "\"tokenizer.ggml.scores\" has 1 items, and there are 512 tokens");
  expect_not_imported({"tokenizer.ggml.bos_token_id", uint32_value(512)},
                      "\"tokenizer.ggml.bos_token_id\" 512 is no id of the 512 tokens");
}

TEST(GgufImportFault, RefusesValuesThatMakeNoModel) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  constexpr double kEndless = std::numeric_limits<double>::infinity();
  expect_not_imported({"llama.rope.freq_base", float32_value(kEndless)},
                      "the key \"llama.rope.freq_base\" must be a finite number, found inf");
  expect_not_imported({"llama.attention.layer_norm_rms_epsilon", float32_value(kNone)},
                      "must be a finite number, found nan");
  expect_not_imported({"tokenizer.ggml.scores", float32s_value(std::vector<double>(512, kNone))},
                      "\"tokenizer.ggml.scores\" must hold finite numbers, found nan");
  for (const int type : {0, 7, -1}) {
    expect_not_imported(
        {"tokenizer.ggml.token_type", int32s_value(std::vector<std::int64_t>(512, type))},
        "\"tokenizer.ggml.token_type\" holds " + std::to_string(type) + ", and types are 1 to 6");
  }
  expect_not_imported({"tokenizer.ggml.merges", texts_value({"a never"})},
                      "edited.gguf: its keys mean a tokenizer.json with ", "qwen2");
}

TEST(GgufImportFault, RefusesTensorsThatAreMissingOrUnknown) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  expect_not_imported({.tensor = "token_embd.weight"}, "tensor \"token_embd.weight\" is missing");
  expect_not_imported({.tensor = "blk.1.ffn_up.weight"},
                      "the tensor of parameter \"model.layers.1.mlp.up_proj.weight\" is missing");
  expect_not_imported({.tensor = "blk.1.ffn_up.weight", .new_name = "blk.1.ffn_up_exps.weight"},
                      "tensor \"blk.1.ffn_up_exps.weight\" is not implemented in \"llama\"");
  expect_not_imported({.tensor = "blk.1.ffn_up.weight", .new_name = "blk.9.ffn_up.weight"},
                      "the tensor of parameter \"model.layers.1.mlp.up_proj.weight\" is missing");
}

TEST(GgufImportFault, WritesIntoNoFolderThatHoldsFiles) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  const TemporaryFolder out;
  write_all(out / "mine.txt", "mine");
  expect_error(
      [&] {
        import_gguf({data_model("llama"), out.path()});
      },
      sherd::ExitCode::CannotWrite, "exists and is no empty folder");
  expect_error(
      [&] {
        import_gguf({data_model("llama"), out / "mine.txt"});
      },
      sherd::ExitCode::CannotWrite, "exists and is no empty folder");
  EXPECT_EQ(read_all(out / "mine.txt"), "mine");
  fs::create_directory(out / "empty");
  import_gguf({data_model("llama"), out / "empty/"});
  EXPECT_TRUE(fs::exists(out / "empty/config.json"));
  EXPECT_EQ(std::distance(fs::directory_iterator(out.path()), {}), 2);
}

}  // namespace
}  // namespace llm::gguf
