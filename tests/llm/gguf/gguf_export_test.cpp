// From model folders to GGUF files and back.

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <nlohmann/json.hpp>

#include "llm/export/export_gguf.h"
#include "llm/gguf/gguf_file.h"
#include "llm/gguf/import_gguf.h"
#include "llm/io/hf_config.h"
#include "llm/text/tokenizer.h"
#include "sherd/safetensors.h"
#include "tests/llm/gguf/gguf_bytes.h"
#include "tests/llm/io/model_folders.h"
#include "tests/support/test_data.h"

namespace llm::gguf {
namespace {

namespace fs = std::filesystem;
using ExportJson = nlohmann::ordered_json;
using io::expect_error;
using io::read_all;
using io::TemporaryFolder;
using io::write_all;

const std::string kStories = io::kData + "stories260k-hf";

exports::GgufOutcome export_folder_as_gguf(const std::string& folder, const std::string& out,
                                           std::optional<FileKind> kind = std::nullopt) {
  exports::GgufOptions options{.source = {}, .model_folder = folder, .out = out};
  options.kind = kind;
  return exports::export_gguf(options);
}

// Copies a model folder whose files may then be changed.
void copy_model(const std::string& from, const std::string& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    const fs::path copy = fs::path(to) / entry.path().filename();
    fs::copy_file(entry.path(), copy);
    fs::permissions(copy, fs::perms::owner_all, fs::perm_options::add);
  }
}

void change_json(const std::string& path, const ExportJson& changes) {
  auto content = ExportJson::parse(read_all(path));
  content.merge_patch(changes);
  write_all(path, content.dump());
}

// The tensors of both folders have the same names and, in fp32, the same bits.
void expect_same_weights(const std::string& one, const std::string& other) {
  const sherd::SafetensorsFolder first(one), second(other);
  EXPECT_EQ(first.names(), second.names());
  for (const std::string& name : first.names()) {
    const auto a = first.find(name), b = second.find(name);
    ASSERT_TRUE(b) << name;
    EXPECT_TRUE(
        at::equal(a->file->read(*a->entry).to(at::kFloat), b->file->read(*b->entry).to(at::kFloat)))
        << name;
  }
}

void expect_same_shape(const std::string& one, const std::string& other) {
  const auto a = io::read_model_folder_config(one), b = io::read_model_folder_config(other);
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ(a.shape.hidden_size, b.shape.hidden_size);
  EXPECT_EQ(a.shape.feed_forward_size, b.shape.feed_forward_size);
  EXPECT_EQ(a.shape.layers, b.shape.layers);
  EXPECT_EQ(a.shape.heads, b.shape.heads);
  EXPECT_EQ(a.shape.key_heads, b.shape.key_heads);
  EXPECT_EQ(a.shape.head_size, b.shape.head_size);
  EXPECT_EQ(a.shape.vocab_size, b.shape.vocab_size);
  EXPECT_EQ(a.shape.context_length, b.shape.context_length);
  EXPECT_EQ(a.shape.norm_epsilon, b.shape.norm_epsilon);
  EXPECT_EQ(a.shape.tied_embedding, b.shape.tied_embedding);
  ASSERT_EQ(a.shape.rope.has_value(), b.shape.rope.has_value());
  if (a.shape.rope) {
    EXPECT_EQ(a.shape.rope->theta, b.shape.rope->theta);
    EXPECT_EQ(a.shape.rope->attention_factor(), b.shape.rope->attention_factor());
    EXPECT_TRUE(at::equal(model::rope_frequencies(*a.shape.rope, a.shape.head_size),
                          model::rope_frequencies(*b.shape.rope, b.shape.head_size)));
  }
}

void expect_same_words(const std::string& one, const std::string& other) {
  const auto a = text::Tokenizer::from_folder(one), b = text::Tokenizer::from_folder(other);
  for (const char* words :
       {"", " ", "Once upon a time, there was a girl.", "In 1990,  2 people\n 12", "don't  I'M",
        "caf\u00e9 \u4e16\u754c \U0001F642", "a\tb\n\n\nc"}) {
    EXPECT_EQ(a.encode(words).ids, b.encode(words).ids) << words;
    EXPECT_EQ(a.decode(a.encode(words).ids), b.decode(b.encode(words).ids)) << words;
  }
  EXPECT_EQ(a.stop_ids(), b.stop_ids());
  EXPECT_EQ(a.end_id(), b.end_id());
}

// Takes out of a tokenizer what its model's embedding has no row for.
void keep_tokens_with_rows(const std::string& folder) {
  auto tokenizer = nlohmann::json::parse(read_all(folder + "/tokenizer.json"));
  const auto rows = io::read_model_folder_config(folder).shape.vocab_size;
  auto& vocab = tokenizer.at("model").at("vocab");
  const std::size_t tokens = vocab.size();
  for (auto token = vocab.begin(); token != vocab.end();) {
    token = token.value() < rows ? std::next(token) : vocab.erase(token);
  }
  if (vocab.size() < tokens) {
    tokenizer["model"]["merges"] = nlohmann::json::array();
    write_all(folder + "/tokenizer.json", tokenizer.dump());
  }
}

TEST(GgufRoundTrip, OfAModelFolderGivesTheSameBits) {
  std::vector<std::string> models = {kStories};
  for (const char* more : {"tiny-llama3-hf", "families/llama-linear", "tiny-bloom-hf"}) {
    if (const auto folder = sherd::test::extra_data(more)) {
      models.push_back(*folder);
    }
  }
  for (const std::string& model : models) {
    SCOPED_TRACE(model);
    const TemporaryFolder made;
    copy_model(model, made / "model");
    if (!fs::exists(made / "model/tokenizer.json")) {
      for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
        fs::copy_file(kStories + "/" + file, made / (std::string("model/") + file));
      }
    }
    keep_tokens_with_rows(made / "model");
    const auto outcome = export_folder_as_gguf(made / "model", made / "out/m.gguf", FileKind::F32);
    EXPECT_EQ(outcome.file, made / "out/m.gguf");
    import_gguf({outcome.file, made / "back"});
    expect_same_weights(made / "model", made / "back");
    expect_same_shape(made / "model", made / "back");
    expect_same_words(made / "model", made / "back");
  }
}

TEST(GgufRoundTrip, OfAPhi3KeepsTheWindow) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const TemporaryFolder made;
  copy_model(*sherd::test::extra_data("families") / "phi3", made / "model");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(kStories + "/" + file, made / (std::string("model/") + file));
  }
  keep_tokens_with_rows(made / "model");
  change_json(made / "model/config.json", {{"sliding_window", nullptr}});
  const std::string whole = export_folder_as_gguf(made / "model", made / "whole.gguf").file;
  for (const int window : {0, 19}) {
    const std::string name = std::to_string(window);
    write_edited(whole, made / (name + ".gguf"),
                 {"phi3.attention.sliding_window", uint32_value(window)});
    import_gguf({made / (name + ".gguf"), made / name});
    EXPECT_EQ(io::read_model_folder_config(made / name).shape.window, window);
  }
}

// The factors are tensors, and one for cos and sin follows from both contexts.
TEST(GgufRoundTrip, OfAPhi3KeepsItsLongRope) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const TemporaryFolder made;
  copy_model(*sherd::test::extra_data("families") / "phi3-longrope", made / "model");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(kStories + "/" + file, made / (std::string("model/") + file));
  }
  keep_tokens_with_rows(made / "model");
  const std::string whole = export_folder_as_gguf(made / "model", made / "model.gguf").file;
  import_gguf({whole, made / "back"});
  expect_same_weights(made / "model", made / "back");
  expect_same_shape(made / "model", made / "back");
  const auto scaling = [](const std::string& folder) {
    return std::get<model::LongRopeScaling>(
        io::read_model_folder_config(folder).shape.rope->scaling);
  };
  const auto kept = scaling(made / "model"), back = scaling(made / "back");
  EXPECT_EQ(back.short_factors, kept.short_factors);
  EXPECT_EQ(back.long_factors, kept.long_factors);
  EXPECT_EQ(back.original_context_tokens, kept.original_context_tokens);
  write_edited(whole, made / "edited.gguf", {"phi3.rope.scaling.attn_factor", float32_value(1.5)});
  io::expect_error(
      [&] {
        import_gguf({made / "edited.gguf", made / "no"});
      },
      sherd::ExitCode::BadData,
      "\"phi3.rope.scaling.attn_factor\" is 1.5, where 1.227364 follows from both "
      "context lengths");
}

TEST(GgufExport, WritesAModelfileThatStops) {
  const TemporaryFolder made;
  const auto outcome = export_folder_as_gguf(kStories, made / "dir");
  EXPECT_EQ(outcome.file, made / "dir/model.gguf");
  EXPECT_EQ(read_all(made / "dir/Modelfile"),
            "# ollama create NAME -f this file\nFROM ./model.gguf\nPARAMETER stop \"</s>\"\n"
            "PARAMETER stop \"<s>\"\n");
  const GgufFile file(outcome.file);
  EXPECT_EQ(file.whole("tokenizer.ggml.eos_token_id"), 2);
  EXPECT_EQ(file.whole("tokenizer.ggml.eot_token_id"), 1);
  EXPECT_EQ(outcome.kind, FileKind::F32);
  EXPECT_EQ(outcome.tensors, std::ssize(file.tensors()));
  EXPECT_EQ(outcome.file_bytes, static_cast<std::int64_t>(fs::file_size(outcome.file)));
  expect_error([&] { export_folder_as_gguf(kStories, made / "dir"); }, sherd::ExitCode::CannotWrite,
               "dir/model.gguf' exists already. Give another name, or remove it.");
}

// A folder with one thing that llama.cpp has not: nothing is written.
void expect_not_written(const std::function<void(const std::string& folder)>& change,
                        const std::string& message) {
  const TemporaryFolder made;
  copy_model(kStories, made / "model");
  change(made / "model");
  expect_error([&] { export_folder_as_gguf(made / "model", made / "out"); },
               sherd::ExitCode::BadData, message);
  EXPECT_FALSE(fs::exists(made / "out"));
}

TEST(GgufExport, RefusesWhatLlamaCppHasNot) {
  const auto config = [](const ExportJson& changes) {
    return [changes](const std::string& folder) { change_json(folder + "/config.json", changes); };
  };
  const auto tokenizer = [](const ExportJson& changes) {
    return
        [changes](const std::string& folder) { change_json(folder + "/tokenizer.json", changes); };
  };
  expect_not_written(config({{"model_type", "smollm3"},
                             {"architectures", {"SmolLM3ForCausalLM"}},
                             {"no_rope_layer_interval", 4}}),
                     "models of type \"smollm3\" are not written as GGUF, only llama, mistral, "
                     "qwen2, qwen3");
  expect_not_written(
      config({{"model_type", "mistral"},
              {"architectures", {"MistralForCausalLM"}},
              {"sliding_window", 64}}),
      "\"sliding_window\" 64 below \"max_position_embeddings\" 512 in a model of type \"mistral\"");
  expect_not_written(
      config({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 16}}}}),
      "rope_type \"yarn\" with other values of \"beta_fast\"");
  expect_not_written(
      config(
          {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"attention_factor", 1.5}}}}),
      "\"attention_factor\" 1.5, where 1.06931 follows from \"factor\"");
  expect_not_written(config({{"rope_scaling",
                              {{"rope_type", "longrope"},
                               {"short_factor", {1.0, 1.0, 1.0, 1.0}},
                               {"long_factor", {1.0, 2.0, 3.0, 4.0}},
                               {"original_max_position_embeddings", 256}}}}),
                     "rope_type \"longrope\" in a model of type \"llama\"");
  expect_not_written(tokenizer({{"normalizer", {{"type", "Lowercase"}, {"normalizers", nullptr}}}}),
                     "tokenizer.json: \"normalizer\" {");
  expect_not_written(
      [](const std::string& folder) {
        fs::create_symlink("/etc/passwd", folder + "/chat_template.jinja");
      },
      "chat_template.jinja: links to /etc/passwd");
  expect_not_written(tokenizer({{"model", {{"type", "WordPiece"}}}}),
                     "\"model\" is no BPE with \"vocab\" and \"merges\": llama.cpp has no such");
  expect_not_written(tokenizer({{"model", {{"byte_fallback", false}}}, {"normalizer", nullptr}}),
                     "\"pre_tokenizer\" cuts texts by null");
  expect_not_written(tokenizer({{"model", {{"vocab", {{"more", 512}}}}}}),
                     "token \"more\" has id 512, and the embedding has 512 rows");
  expect_not_written(tokenizer({{"post_processor", {{"type", "BertProcessing"}}}}),
                     "\"post_processor\" of type \"BertProcessing\"");
}

// A Gemma 3 that llama.cpp computes as well, with its config.json changed.
void write_gemma3_folder(const std::string& to,
                         const std::function<void(ExportJson& config)>& change) {
  copy_model(*sherd::test::extra_data("families") / "gemma3", to);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(kStories + "/" + file, to + "/" + file, fs::copy_options::overwrite_existing);
  }
  auto config = ExportJson::parse(read_all(to + "/config.json"));
  config["query_pre_attn_scalar"] = 20;
  change(config);
  write_all(to + "/config.json", config.dump());
}

TEST(GgufExport, TakesNullAndIgnoredFieldsAsMissing) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const TemporaryFolder made;
  write_gemma3_folder(made / "model", [](ExportJson& config) {
    config["rope_theta"] = nullptr;
    config["rope_local_base_freq"] = nullptr;
    config["rope_parameters"]["sliding_attention"]["rope_theta"] = nullptr;
    config["final_logit_softcapping"] = 30.0;
  });
  exports::GgufOptions options{.model_folder = made / "model", .out = made / "out.gguf"};
  options.source.ignored_fields = {"final_logit_softcapping"};
  const GgufFile file(exports::export_gguf(options).file);
  EXPECT_EQ(file.number("gemma3.rope.freq_base"), 1e6);
  EXPECT_EQ(file.number("gemma3.rope.freq_base_swa"), 1e4);
  write_gemma3_folder(made / "unscaled",
                      [](ExportJson& config) { config["query_pre_attn_scalar"] = nullptr; });
  expect_error([&] { export_folder_as_gguf(made / "unscaled", made / "no.gguf"); },
               sherd::ExitCode::BadData, "\"query_pre_attn_scalar\" 256, where llama.cpp takes 20");
}

TEST(GgufExport, JoinsBothSpellingsOfRope) {
  SHERD_NEEDS_EXTRA_DATA("families");
  const TemporaryFolder made;
  write_gemma3_folder(made / "model", [](ExportJson& config) {
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
    config["rope_parameters"]["full_attention"] = {{"rope_theta", 5e5}};
  });
  const GgufFile file(export_folder_as_gguf(made / "model", made / "out.gguf").file);
  EXPECT_EQ(file.text("gemma3.rope.scaling.type"), "linear");
  EXPECT_EQ(file.number("gemma3.rope.scaling.factor"), 4);
  EXPECT_EQ(file.number("gemma3.rope.freq_base"), 5e5);
  write_gemma3_folder(made / "windows", [](ExportJson& config) {
    config["rope_parameters"]["sliding_attention"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  });
  expect_error([&] { export_folder_as_gguf(made / "windows", made / "no.gguf"); },
               sherd::ExitCode::BadData, "rope_type \"linear\" in a model of type \"gemma3_text\"");
}

// Changes the added tokens of a model folder.
void change_added_tokens(const std::string& folder,
                         const std::function<void(ExportJson& token)>& change) {
  auto tokenizer = ExportJson::parse(read_all(folder + "/tokenizer.json"));
  std::for_each(tokenizer["added_tokens"].begin(), tokenizer["added_tokens"].end(), change);
  write_all(folder + "/tokenizer.json", tokenizer.dump());
}

TEST(GgufExport, RefusesTokensThatTakeInWhatStandsBesideThem) {
  for (const std::string field : {"lstrip", "single_word", "rstrip"}) {
    expect_not_written(
        [&](const std::string& folder) {
          change_added_tokens(folder, [&](ExportJson& token) { token[field] = true; });
        },
        "the added token \"<unk>\" has \"" + field + '"');
  }
  const TemporaryFolder made;
  const std::string phi = made / "Phi-3-mini";
  copy_model(kStories, phi);
  expect_error([&] { export_folder_as_gguf(phi, made / "no.gguf"); }, sherd::ExitCode::BadData,
               "the added token \"</s>\" has \"rstrip\" false, which llama.cpp takes from the "
               "model's name, \"phi-3-mini\": true with \"phi-3\" in it");
  change_added_tokens(phi, [](ExportJson& token) { token["rstrip"] = token["content"] == "</s>"; });
  EXPECT_TRUE(fs::exists(export_folder_as_gguf(phi, made / "phi.gguf").file));
}

// Beyond fp16's largest number.
TEST(GgufExport, RefusesValuesThatItsTypeCannotHold) {
  const TemporaryFolder made;
  copy_model(kStories, made / "model");
  fs::remove(made / "model/model.safetensors");
  const sherd::SafetensorsFolder whole(kStories);
  std::vector<sherd::SafetensorsSpec> specs;
  for (const std::string& name : whole.names()) {
    specs.push_back({name, at::kFloat, whole.find(name)->entry->shape});
  }
  sherd::SafetensorsWriter writer(made / "model/model.safetensors", specs);
  for (const sherd::SafetensorsSpec& spec : specs) {
    const auto place = whole.find(spec.name);
    at::Tensor values = place->file->read(*place->entry).to(at::kFloat);
    if (spec.name == "model.layers.1.mlp.up_proj.weight") {
      values = values.clone();
      values[0][0] = 1e5;
    }
    writer.write(spec.name, values.const_data_ptr(), values.nbytes());
  }
  writer.finish();
  expect_error([&] { export_folder_as_gguf(made / "model", made / "out", FileKind::F16); },
               sherd::ExitCode::BadData,
               "parameter \"model.layers.1.mlp.up_proj.weight\" holds 100000, which F16 cannot "
               "hold. Write it with --dtype bf16 or f32");
  EXPECT_FALSE(fs::exists(made / "out"));
  export_folder_as_gguf(made / "model", made / "out", FileKind::BF16);
}

}  // namespace
}  // namespace llm::gguf
