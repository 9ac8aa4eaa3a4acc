#include "llm/gguf/tokenizer_folder.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/core.h>

#include "files/strict_json.h"
#include "llm/gguf/pre_tokenizers.h"
#include "llm/gguf/token_type.h"

namespace llm::gguf {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxPieceBytes = 1'024;  // of those that merges are looked for

constexpr std::array kKnownKeys = {"model",
                                   "pre",
                                   "tokens",
                                   "token_type",
                                   "scores",
                                   "merges",
                                   "bos_token_id",
                                   "eos_token_id",
                                   "eot_token_id",
                                   "eom_token_id",
                                   "padding_token_id",
                                   "unknown_token_id",
                                   "seperator_token_id",
                                   "mask_token_id",
                                   "cls_token_id",
                                   "add_bos_token",
                                   "add_eos_token",
                                   "add_space_prefix",
                                   "add_sep_token",
                                   "remove_extra_whitespaces",
                                   "precompiled_charsmap",
                                   "token_type_count"};

std::string key_of(const char* name) {
  return std::string("tokenizer.ggml.") + name;
}

// The tokens of a file with their types, checked.
struct Tokens {
  explicit Tokens(const GgufFile& gguf)
      : file(gguf), texts(gguf.texts(key_of("tokens"))), types(gguf.wholes(key_of("token_type"))) {
    if (types.size() != texts.size()) {
      file.refuse(fmt::format("\"tokenizer.ggml.token_type\" has {} items, and there are {} tokens",
                              types.size(), texts.size()));
    }
    for (const std::int64_t type : types) {
      if (type < static_cast<std::int64_t>(TokenType::Normal) ||
          type > static_cast<std::int64_t>(TokenType::Byte)) {
        file.refuse(
            fmt::format("\"tokenizer.ggml.token_type\" holds {}, and types are 1 to 6", type));
      }
    }
  }
  [[nodiscard]] bool is(std::size_t id, TokenType type) const {
    return types[id] == static_cast<std::int64_t>(type);
  }
  // The id that a key names; nothing without the key.
  [[nodiscard]] std::optional<std::int64_t> named(const char* name) const {
    const auto id = file.whole(key_of(name));
    if (id && (*id < 0 || *id >= std::ssize(texts))) {
      file.refuse(fmt::format("\"tokenizer.ggml.{}\" {} is no id of the {} tokens", name, *id,
                              texts.size()));
    }
    return id;
  }

  const GgufFile& file;
  const std::vector<std::string>& texts;
  const std::vector<std::int64_t>& types;
};

void refuse_unknown_tokenizer_keys(const GgufFile& file) {
  for (const KeyValue& one : file.keys()) {
    const bool is_known = !one.key.starts_with("tokenizer.") ||
                          one.key.starts_with("tokenizer.chat_template") ||
                          one.key == "tokenizer.huggingface.json" ||
                          std::any_of(kKnownKeys.begin(), kKnownKeys.end(),
                                      [&](const char* name) { return one.key == key_of(name); });
    if (!is_known) {
      file.refuse("the key " + sherd::files::in_quotes(one.key) + " is not implemented");
    }
  }
}

bool is_added(const Tokens& tokens, std::size_t id) {
  return tokens.is(id, TokenType::Control) || tokens.is(id, TokenType::UserDefined) ||
         tokens.is(id, TokenType::Unknown);
}

Json added_tokens(const Tokens& tokens) {
  Json added = Json::array();
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    if (is_added(tokens, id)) {
      added.push_back({{"id", id},
                       {"content", tokens.texts[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", !tokens.is(id, TokenType::UserDefined)}});
    }
  }
  return added;
}

// Tokens that are unused have no text of their own.
Json vocab_of(const Tokens& tokens) {
  std::unordered_set<std::string_view> seen;
  Json::object_t vocab;  // grows without looking for each name
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    if (tokens.is(id, TokenType::Unused)) {
      continue;
    }
    if (!seen.insert(tokens.texts[id]).second) {
      tokens.file.refuse("the token " + sherd::files::in_quotes(tokens.texts[id]) +
                         " is there twice");
    }
    vocab.emplace_back(tokens.texts[id], id);
  }
  return vocab;
}

// Tokens that a text begins and ends with, where the file asks for them.
Json template_processing(const Tokens& tokens, bool begins) {
  const auto bos = tokens.named("bos_token_id");
  const auto eos = tokens.named("eos_token_id");
  const bool ends = tokens.file.flag(key_of("add_eos_token")).value_or(false);
  if ((begins && !bos) || (ends && !eos)) {
    tokens.file.refuse("a token is added to each text, and no key names it");
  }
  if (!begins && !ends) {
    return nullptr;
  }
  Json special = Json::object();
  const auto token = [&](std::int64_t id, int type) -> Json {
    const std::string& text = tokens.texts[static_cast<std::size_t>(id)];
    special[text] = {{"id", text}, {"ids", Json::array({id})}, {"tokens", Json::array({text})}};
    return {{"SpecialToken", {{"id", text}, {"type_id", type}}}};
  };
  const auto sequence = [&](const char* name, int type) {
    Json items = Json::array();
    if (begins) {
      items.push_back(token(*bos, type));
    }
    items.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
    if (ends) {
      items.push_back(token(*eos, type));
    }
    return items;
  };
  const Json single = sequence("A", 0);
  Json pair = single;
  for (const Json& item : sequence("B", 1)) {
    pair.push_back(item);
  }
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", special}};
}

Json bpe_model(const Tokens& tokens, Json merges, bool is_sentence_piece) {
  const auto unknown = tokens.named("unknown_token_id");
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", is_sentence_piece},
                {"byte_fallback", is_sentence_piece},
                {"ignore_merges", false},
                {"vocab", vocab_of(tokens)},
                {"merges", std::move(merges)}};
  if (is_sentence_piece && unknown) {
    model["unk_token"] = tokens.texts[static_cast<std::size_t>(*unknown)];
  }
  return model;
}

// How each of these begins, as tokenizer.json has it.
Json new_tokenizer(const Tokens& tokens) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens(tokens)}};
}

Json byte_level_tokenizer(const Tokens& tokens) {
  const std::string pre = tokens.file.text(key_of("pre")).value_or("default");
  const Json pre_tokenizer = pre_tokenizer_named(pre);
  if (pre_tokenizer.is_null()) {
    tokens.file.refuse("\"tokenizer.ggml.pre\" is \"" + pre + "\", only " + known_pre_names() +
                       " are read");
  }
  Json merges = Json::array();
  for (const std::string& merge : tokens.file.texts(key_of("merges"))) {
    const std::size_t blank = merge.find(' ', 1);
    if (blank == std::string::npos) {
      tokens.file.refuse("the merge " + sherd::files::in_quotes(merge) + " has no two parts");
    }
    merges.push_back(Json::array({merge.substr(0, blank), merge.substr(blank + 1)}));
  }
  // llama.cpp takes a piece that is a token as it is, with these, and begins texts with a token.
  const bool is_llama3 = pre == "llama-bpe" || pre == "llama-v3" || pre == "tekken";
  const bool begins = tokens.file.flag(key_of("add_bos_token")).value_or(is_llama3);
  Json tokenizer = new_tokenizer(tokens);
  tokenizer["normalizer"] = pre == "qwen2" ? Json({{"type", "NFC"}}) : Json();
  tokenizer["pre_tokenizer"] = pre_tokenizer;
  tokenizer["post_processor"] = template_processing(tokens, begins);
  tokenizer["decoder"] = {{"type", "ByteLevel"},
                          {"add_prefix_space", true},
                          {"trim_offsets", true},
                          {"use_regex", true}};
  tokenizer["model"] = bpe_model(tokens, std::move(merges), /*is_sentence_piece=*/false);
  tokenizer["model"]["ignore_merges"] = is_llama3;
  return tokenizer;
}

// A merge of SentencePiece: two pieces that are tokens, by the score of what they make.
struct ScoredMerge {
  double score;
  std::size_t left, right;
};

void add_merges(const std::unordered_map<std::string_view, std::size_t>& ids,
                std::string_view piece, double score, std::vector<ScoredMerge>& merges) {
  const auto begin = std::ssize(merges);
  for (std::size_t cut = 1; cut < piece.size(); ++cut) {
    const bool is_inside_character = (static_cast<unsigned char>(piece[cut]) & 0xC0) == 0x80;
    const auto left = is_inside_character ? ids.end() : ids.find(piece.substr(0, cut));
    const auto right = left == ids.end() ? ids.end() : ids.find(piece.substr(cut));
    if (right != ids.end()) {
      merges.push_back({score, left->second, right->second});
    }
  }
  std::sort(merges.begin() + begin, merges.end(), [](const auto& one, const auto& other) {
    return std::tie(one.left, one.right) < std::tie(other.left, other.right);
  });
}

Json merges_of_scores(const Tokens& tokens) {
  const std::vector<double>& scores = tokens.file.numbers(key_of("scores"));
  if (scores.size() != tokens.texts.size()) {
    tokens.file.refuse(
        fmt::format("\"tokenizer.ggml.scores\" has {} items, and there are {} tokens",
                    scores.size(), tokens.texts.size()));
  }
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    if (tokens.is(id, TokenType::Normal)) {
      ids.emplace(tokens.texts[id], id);
    }
  }
  std::vector<ScoredMerge> found;
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    if (!tokens.is(id, TokenType::Normal)) {
      continue;
    }
    if (tokens.texts[id].size() > kMaxPieceBytes) {
      tokens.file.refuse(fmt::format("token {} has {} bytes, more than {}", id,
                                     tokens.texts[id].size(), kMaxPieceBytes));
    }
    add_merges(ids, tokens.texts[id], scores[id], found);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& one, const auto& other) { return one.score > other.score; });
  Json merges = Json::array();
  for (const ScoredMerge& merge : found) {
    merges.push_back(Json::array({tokens.texts[merge.left], tokens.texts[merge.right]}));
  }
  return merges;
}

Json sentence_piece_tokenizer(const Tokens& tokens) {
  const bool prefix = tokens.file.flag(key_of("add_space_prefix")).value_or(true);
  Json steps = Json::array();
  if (prefix) {
    steps.push_back({{"type", "Prepend"}, {"prepend", kBlank}});
  }
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kBlank}});
  Json decoders = Json::array();
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kBlank}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  Json tokenizer = new_tokenizer(tokens);
  tokenizer["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  tokenizer["pre_tokenizer"] = nullptr;
  tokenizer["post_processor"] =
      template_processing(tokens, tokens.file.flag(key_of("add_bos_token")).value_or(true));
  tokenizer["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  tokenizer["model"] = bpe_model(tokens, merges_of_scores(tokens), /*is_sentence_piece=*/true);
  return tokenizer;
}

// The ids that end an answer, the first first.
Json stop_ids(const Tokens& tokens) {
  Json ids = Json::array();
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    const auto id = tokens.named(name);
    if (id && std::find(ids.begin(), ids.end(), Json(*id)) == ids.end()) {
      ids.push_back(*id);
    }
  }
  return ids.size() == 1 ? ids[0] : ids.empty() ? Json() : ids;
}

void name_tokens(const Tokens& tokens, TokenizerFiles& files) {
  for (const auto& [field, name] : {std::pair("bos_token", "bos_token_id"),
                                    {"eos_token", "eos_token_id"},
                                    {"unk_token", "unknown_token_id"},
                                    {"pad_token", "padding_token_id"}}) {
    if (const auto id = tokens.named(name)) {
      files.special_tokens[field] = tokens.texts[static_cast<std::size_t>(*id)];
    }
  }
  const auto id_or_null = [&](const char* name) {
    const auto id = tokens.named(name);
    return id ? Json(*id) : Json();
  };
  files.ids = {{"bos_token_id", id_or_null("bos_token_id")},
               {"eos_token_id", stop_ids(tokens)},
               {"pad_token_id", id_or_null("padding_token_id")}};
  for (const auto& [name, id] : files.ids.items()) {
    if (!id.is_null()) {
      files.generation_config[name] = id;
    }
  }
}

}  // namespace

TokenizerFiles tokenizer_files(const GgufFile& file, std::int64_t context_length) {
  refuse_unknown_tokenizer_keys(file);
  const Tokens tokens(file);
  const std::string kind = file.text(key_of("model")).value_or("");
  if (kind != "gpt2" && kind != "llama") {
    file.refuse("\"tokenizer.ggml.model\" is \"" + kind +
                "\", only \"gpt2\" and \"llama\" are read");
  }
  TokenizerFiles files;
  files.special_tokens = files.generation_config = Json::object();
  files.tokenizer =
      kind == "gpt2" ? byte_level_tokenizer(tokens) : sentence_piece_tokenizer(tokens);
  name_tokens(tokens, files);
  files.tokenizer_config = files.special_tokens;
  if (const auto chat = file.text("tokenizer.chat_template")) {
    files.tokenizer_config["chat_template"] = *chat;
  }
  files.tokenizer_config["clean_up_tokenization_spaces"] = false;
  files.tokenizer_config["model_max_length"] = context_length;
  files.tokenizer_config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return files;
}

}  // namespace llm::gguf
