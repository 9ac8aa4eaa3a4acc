// Exported files in llama.cpp itself, of npm's node-llama-cpp: the same tokens of texts, the same
// greedy continuation, and probabilities that differ by at most 1e-3; also of an adapter on its
// base. `scripts/llama_cpp` installs it.

#include <cstdlib>
#include <filesystem>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/softmax.h>
#include <nlohmann/json.hpp>

#include "llm/export/export_gguf.h"
#include "llm/gguf/import_gguf.h"
#include "llm/io/export.h"
#include "llm/io/hf_config.h"
#include "llm/io/import.h"
#include "llm/text/tokenizer.h"
#include "tests/in_process/run_program.h"
#include "tests/llm/io/model_folders.h"
#include "tests/support/test_data.h"

namespace llm::gguf {
namespace {

namespace fs = std::filesystem;
using PeerJson = nlohmann::json;
using sherd::test::operator+;
using io::read_all;
using io::TemporaryFolder;

const std::string kPackages = SHERD_TEST_SOURCE_DIR "/.deps/llama_cpp";
constexpr int kGreedyTokens = 64;
constexpr std::size_t kTexts = 200;

std::vector<std::string> texts_of_questions() {
  std::vector<std::string> texts;
  const auto file =
      PeerJson::parse(read_all(SHERD_TEST_SOURCE_DIR "/recipes/data/squad-1000-train.json"));
  for (const auto& article : file.at("data")) {
    for (const auto& paragraph : article.at("paragraphs")) {
      texts.push_back(paragraph.at("context"));
      for (const auto& question : paragraph.at("qas")) {
        texts.push_back(" " + question.at("question").get<std::string>() + "\n\n  12 ");
      }
    }
  }
  texts.resize(kTexts);
  return texts;
}

PeerJson ask_llama_cpp(const PeerJson& questions) {
  const TemporaryFolder folder;
  io::write_all(folder / "questions.json", questions.dump());
  const std::string command = "node " SHERD_TEST_SOURCE_DIR "/tests/llm/gguf/llama_cpp.mjs " +
                              kPackages + " " + (folder / "questions.json") + " > " +
                              (folder / "answer.json");
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return PeerJson::parse(read_all(folder / "answer.json"));
}

// The last row of logits of a text, in fp32.
at::Tensor last_logits(model::CausalLm& model, const std::vector<std::int32_t>& ids) {
  std::vector<std::int64_t> text(ids.begin(), ids.end());
  const auto size = std::ssize(text);
  const at::Tensor tokens = at::from_blob(text.data(), {size}, at::kLong).clone();
  return model->logits(tokens, sherd::ops::Documents({0, size})).detach()[size - 1].to(at::kFloat);
}

void expect_llama_cpp_agrees(const std::string& folder, const PeerJson& files,
                             const std::string& prompt) {
  const auto tokenizer = text::Tokenizer::from_folder(folder);
  std::vector<std::int32_t> ids = tokenizer.encode(prompt).ids;
  const std::vector<std::string> texts = texts_of_questions();
  PeerJson questions = files;
  questions.update({{"texts", texts}, {"prompt", ids}, {"tokens", kGreedyTokens}});
  const PeerJson answer = ask_llama_cpp(questions);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(answer.at("ids")[i],
              PeerJson(tokenizer.encode(texts[i], text::SpecialTokens::Leave).ids))
        << texts[i];
  }
  auto model = io::build_model(io::read_model_folder_config(folder));
  io::load_weights(*model, sherd::SafetensorsFolder(folder));
  auto theirs = answer.at("probabilities").get<std::vector<float>>();
  const at::Tensor expected = at::from_blob(theirs.data(), {std::ssize(theirs)}, at::kFloat);
  EXPECT_LE((last_logits(model, ids).softmax(0) - expected).abs().max().item<double>(), 1e-3);
  std::vector<std::int32_t> greedy;
  while (std::ssize(greedy) < kGreedyTokens) {
    greedy.push_back(last_logits(model, ids).argmax().item<std::int32_t>());
    ids.push_back(greedy.back());
  }
  EXPECT_EQ(answer.at("greedy"), PeerJson(greedy));
}

void expect_llama_cpp_agrees(const std::string& folder, FileKind kind, const std::string& prompt) {
  SCOPED_TRACE(folder + ", " + exports::name_of_kind(kind));
  const TemporaryFolder out;
  exports::GgufOptions options{.model_folder = folder, .out = out / "model.gguf"};
  options.kind = kind;
  exports::export_gguf(options);
  expect_llama_cpp_agrees(folder, {{"model", options.out}}, prompt);
}

class LlamaCpp : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kPackages + "/node_modules/node-llama-cpp")) {
      GTEST_SKIP() << "SKIPPED: needs llama.cpp in .deps/llama_cpp: run scripts/llama_cpp";
    }
  }
};

TEST_F(LlamaCpp, ContinuesALlamaTheSameWay) {
  const std::string stories = io::kData + "stories260k-hf";
  for (const FileKind kind : {FileKind::F32, FileKind::F16}) {
    expect_llama_cpp_agrees(stories, kind, "Once upon a time, there was");
  }
}

TEST_F(LlamaCpp, ContinuesAQwenTheSameWay) {
  SHERD_NEEDS_EXTRA_DATA("gguf");
  const TemporaryFolder out;
  import_gguf({*sherd::test::extra_data("gguf") / "qwen2/model.gguf", out / "qwen2"});
  expect_llama_cpp_agrees(out / "qwen2", FileKind::F32, "Once upon a time, there was");
}

// A model of random weights with the configuration, in a folder with the tokenizer of another.
void write_random_model(const PeerJson& config, const std::string& tokenizer_folder,
                        const std::string& to) {
  fs::copy(tokenizer_folder, to);
  fs::remove(to + "/model.safetensors");
  io::write_all(to + "/config.json", config.dump());
  at::manual_seed(1);
  auto model = io::build_model(io::read_model_folder_config(to));
  sherd::SafetensorsWriter writer(to + "/model.safetensors", io::export_specs(*model, at::kFloat));
  for (const auto& parameter : model->named_parameters()) {
    const at::Tensor values = parameter.value().detach().contiguous();
    writer.write(parameter.key(), values.const_data_ptr(), values.nbytes());
  }
  writer.finish();
}

const std::string kSmallBloom = SHERD_TEST_SOURCE_DIR "/recipes/models/small-bloom";

TEST_F(LlamaCpp, ContinuesABloomTheSameWay) {
  const TemporaryFolder out;
  auto config = PeerJson::parse(read_all(kSmallBloom + "/config.json"));
  config["initializer_range"] = 0.15;  // probabilities are uneven; llama.cpp keeps keys in fp16
  write_random_model(config, kSmallBloom, out / "bloom");
  expect_llama_cpp_agrees(out / "bloom", FileKind::F32, "Once upon a time, there was");
}

TEST_F(LlamaCpp, ContinuesAGpt2TheSameWay) {
  const TemporaryFolder out;
  const PeerJson config = {{"architectures", {"GPT2LMHeadModel"}},
                           {"model_type", "gpt2"},
                           {"activation_function", "gelu_new"},
                           {"bos_token_id", 1},
                           {"eos_token_id", 2},
                           {"initializer_range", 0.1},
                           {"layer_norm_epsilon", 1e-5},
                           {"n_embd", 128},
                           {"n_head", 4},
                           {"n_layer", 3},
                           {"n_positions", 256},
                           {"vocab_size", 512}};
  write_random_model(config, kSmallBloom, out / "gpt2");
  for (const FileKind kind : {FileKind::F32, FileKind::F16}) {
    expect_llama_cpp_agrees(out / "gpt2", kind, "Once upon a time, there was");
  }
}

// A window, and rotary positions of three quarters of each head. llama.cpp gives models with "phi3"
// in their names other special tokens than this tokenizer has.
TEST_F(LlamaCpp, ContinuesAPhi3TheSameWay) {
  const TemporaryFolder out;
  const PeerJson config = {{"architectures", {"Phi3ForCausalLM"}},
                           {"model_type", "phi3"},
                           {"hidden_act", "silu"},
                           {"hidden_size", 128},
                           {"initializer_range", 0.15},
                           {"intermediate_size", 192},
                           {"max_position_embeddings", 512},
                           {"original_max_position_embeddings", 512},
                           {"num_attention_heads", 4},
                           {"num_hidden_layers", 3},
                           {"num_key_value_heads", 2},
                           {"partial_rotary_factor", 0.75},
                           {"rms_norm_eps", 1e-5},
                           {"rope_theta", 10000.0},
                           {"sliding_window", 512},
                           {"bos_token_id", 1},
                           {"eos_token_id", 2},
                           {"tie_word_embeddings", false},
                           {"vocab_size", 512}};
  write_random_model(config, io::kData + "stories260k-hf", out / "small");
  for (const FileKind kind : {FileKind::F32, FileKind::F16}) {
    expect_llama_cpp_agrees(out / "small", kind, "Once upon a time");
  }
}

// Windows in five of six layers, shorter than the text; two bases of rotary positions.
TEST_F(LlamaCpp, ContinuesAGemma3TheSameWay) {
  const TemporaryFolder out;
  const PeerJson config = {{"architectures", {"Gemma3ForCausalLM"}},
                           {"model_type", "gemma3_text"},
                           {"head_dim", 32},
                           {"hidden_activation", "gelu_pytorch_tanh"},
                           {"hidden_size", 128},
                           {"initializer_range", 0.15},
                           {"intermediate_size", 192},
                           {"max_position_embeddings", 512},
                           {"num_attention_heads", 4},
                           {"num_hidden_layers", 7},
                           {"num_key_value_heads", 1},
                           {"query_pre_attn_scalar", 32},
                           {"rms_norm_eps", 1e-6},
                           {"rope_local_base_freq", 10000.0},
                           {"rope_theta", 1000000.0},
                           {"sliding_window", 16},
                           {"sliding_window_pattern", 6},
                           {"bos_token_id", 1},
                           {"eos_token_id", 2},
                           {"tie_word_embeddings", true},
                           {"vocab_size", 512}};
  write_random_model(config, io::kData + "stories260k-hf", out / "gemma3");
  for (const FileKind kind : {FileKind::F32, FileKind::F16}) {
    expect_llama_cpp_agrees(out / "gemma3", kind, "Once upon a time");
  }
}

// The adapter of a run, which llama.cpp adds to its base, is the run's merged export.
TEST_F(LlamaCpp, AddsAnAdapterToItsBase) {
  const TemporaryFolder out;
  const std::string stories = io::kData + "stories260k-hf";
  sherd::test::expect_code(0, sherd::test::train(out / "run", "8") +
                                  sherd::test::Arguments{"--adapter.kind", "lora", "--adapter.rank",
                                                         "4", "--optim.lr", "3e-2"});
  sherd::test::expect_code(0, {"export", out / "run", "--merged", "--out", out / "merged"});
  sherd::test::expect_code(0, {"export", out / "run", "--gguf", out / "lora.gguf"});
  exports::GgufOptions base{.model_folder = stories, .out = out / "base.gguf"};
  base.kind = FileKind::F32;
  exports::export_gguf(base);
  expect_llama_cpp_agrees(out / "merged", {{"model", base.out}, {"lora", out / "lora.gguf"}},
                          "Once upon a time");
}

// Llama 3's rotary positions are a tensor of factors.
TEST_F(LlamaCpp, ContinuesALlama3TheSameWay) {
  expect_llama_cpp_agrees(io::kData + "tiny-llama3-hf", FileKind::F32, "Once upon a time");
}

TEST_F(LlamaCpp, ContinuesAQwen3TheSameWay) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const TemporaryFolder out;
  fs::create_directory(out / "qwen3");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(*sherd::test::extra_data("families") / "qwen3" / name,
                  out / (std::string("qwen3/") + name));
  }
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(io::kData + "stories260k-hf/" + name, out / (std::string("qwen3/") + name));
  }
  expect_llama_cpp_agrees(out / "qwen3", FileKind::F32, "Once upon a time");
}

// A real model, whose tokenizer cuts texts as "smollm".
TEST_F(LlamaCpp, ContinuesSmolLm2TheSameWay) {
  const std::string folder = SHERD_TEST_SOURCE_DIR "/models/smollm2-135m";
  if (!fs::exists(folder + "/config.json")) {
    GTEST_SKIP() << "SKIPPED: needs models/smollm2-135m: run scripts/real_model";
  }
  expect_llama_cpp_agrees(folder, FileKind::F32, "The capital of France is");
}

}  // namespace
}  // namespace llm::gguf
