#include "llm/gguf/tokenizer_keys.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "files/strict_json.h"
#include "llm/gguf/pre_tokenizers.h"
#include "llm/gguf/token_type.h"
#include "llm/text/chat_template.h"
#include "llm/text/special_tokens.h"
#include "sherd/error.h"

namespace llm::gguf {
namespace {

using PlainJson = nlohmann::json;  // finds a field by its name in a large object

constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{128} << 20;
constexpr double kScoreOfNoToken = -1'000;

// A tokenizer.json, and what it is refused with.
struct TokenizerFile {
  std::string path;
  PlainJson content;

  [[noreturn]] void refuse(const std::string& what) const {
    throw sherd::Error(sherd::ExitCode::BadData,
                       path + ": " + what +
                           ": llama.cpp has no such tokenizer. Export a Hugging Face folder, with "
                           "--out");
  }
  [[nodiscard]] PlainJson field(const char* name) const { return content.value(name, PlainJson()); }
};

std::string with_blanks(std::string text) {
  for (std::size_t at = 0; (at = text.find(kBlank, at)) != std::string::npos; ++at) {
    text.replace(at, std::string_view(kBlank).size(), " ");
  }
  return text;
}

// A file does not say which blanks belong to a token. For llama.cpp those after each added token
// do where the model's name is of Phi-3, except for three tokens.
void check_sides_of_tokens(const TokenizerFile& file, std::string model_name) {
  std::transform(model_name.begin(), model_name.end(), model_name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool is_phi3 =
      model_name.find("phi-3") != std::string::npos || model_name.find("phi3") != std::string::npos;
  for (const PlainJson& token : file.field("added_tokens")) {
    const std::string content = token.at("content");
    const std::string shown = "the added token " + sherd::files::in_quotes(content);
    for (const char* field : {"lstrip", "single_word"}) {
      if (token.value(field, false)) {
        file.refuse(shown + " has \"" + field + '"');
      }
    }
    const bool strips =
        is_phi3 && content != "<unk>" && content != "<s>" && content != "<|endoftext|>";
    if (token.value("rstrip", false) != strips) {
      file.refuse(fmt::format(
          "{} has \"rstrip\" {}, which llama.cpp takes from the model's name, {}: true with "
          "\"phi-3\" in it",
          shown, !strips, sherd::files::in_quotes(model_name)));
    }
  }
}

// The tokens of a tokenizer, one per row, with their types.
class Vocabulary {
 public:
  Vocabulary(const TokenizerFile& file, std::int64_t rows)
      : file_(file), texts_(static_cast<std::size_t>(rows)), types_(texts_.size()) {
    const PlainJson& model = file.content.at("model");
    for (const auto& [token, id] : model.at("vocab").items()) {
      put(id, token, TokenType::Normal);
    }
    for (const PlainJson& token : file.field("added_tokens")) {
      const bool is_special = token.value("special", false);
      const std::string& content = token.at("content").get_ref<const std::string&>();
      put(token.at("id"), is_special ? content : with_blanks(content),
          is_special ? TokenType::Control : TokenType::UserDefined);
      ids_[content] = token.at("id");
    }
    for (std::size_t id = 0; id < texts_.size(); ++id) {
      if (!types_[id]) {
        texts_[id] = fmt::format("[PAD{}]", id);
        types_[id] = TokenType::Unused;
      }
    }
  }

  void set_type(const std::string& token, TokenType type) {
    if (const auto found = ids_.find(token); found != ids_.end()) {
      types_[static_cast<std::size_t>(found->second)] = type;
    }
  }
  [[nodiscard]] std::optional<std::int64_t> id_of(const std::string& token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] const std::vector<std::string>& texts() const { return texts_; }
  [[nodiscard]] bool is_unused(std::size_t id) const { return types_[id] == TokenType::Unused; }
  [[nodiscard]] std::vector<std::int64_t> types() const {
    std::vector<std::int64_t> numbers;
    for (const auto& type : types_) {
      numbers.push_back(static_cast<std::int64_t>(*type));
    }
    return numbers;
  }

 private:
  void put(const PlainJson& id, const std::string& token, TokenType type) {
    if (!id.is_number_integer() || id < 0 || id >= texts_.size()) {
      file_.refuse(fmt::format("token {} has id {}, and the embedding has {} rows",
                               sherd::files::in_quotes(token), id.dump(), texts_.size()));
    }
    const auto place = id.get<std::size_t>();
    if (types_[place] && type == TokenType::Normal) {
      file_.refuse(fmt::format("id {} has two tokens", place));
    }
    texts_[place] = token;
    types_[place] = type;
    ids_[token] = id;
  }

  const TokenizerFile& file_;
  std::vector<std::string> texts_;
  std::vector<std::optional<TokenType>> types_;
  std::map<std::string, std::int64_t> ids_;
};

std::pair<std::string, std::string> parts_of_merge(const TokenizerFile& file,
                                                   const PlainJson& merge) {
  if (merge.is_array() && merge.size() == 2) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  const std::string text = merge.is_string() ? merge.get<std::string>() : "";
  const std::size_t blank = text.find(' ');
  if (blank == std::string::npos) {
    file.refuse("\"model.merges\" holds " + merge.dump());
  }
  return {text.substr(0, blank), text.substr(blank + 1)};
}

// Whether a blank is put before a text; refuses normalizers that SentencePiece has not.
bool has_space_prefix(const TokenizerFile& file) {
  const PlainJson normalizer = file.field("normalizer");
  const PlainJson pre = file.field("pre_tokenizer");
  bool prefix = false, blanks = false;
  if (pre.is_object() && pre.value("type", "") == "Metaspace") {
    prefix =
        pre.value("prepend_scheme", pre.value("add_prefix_space", true) ? "always" : "never") !=
        std::string("never");
    blanks = pre.value("replacement", "") == kBlank;
  } else if (pre.is_object() &&
             !(pre.value("type", "") == "Split" &&
               pre.value("pattern", PlainJson::object()).value("String", "") == " ")) {
    file.refuse("\"pre_tokenizer\" " + pre.dump());
  }
  const bool is_sequence = normalizer.is_object() && normalizer.value("type", "") == "Sequence";
  const PlainJson steps = normalizer.is_null() ? PlainJson::array()
                          : is_sequence        ? normalizer.value("normalizers", PlainJson::array())
                                               : PlainJson::array({normalizer});
  for (const PlainJson& step : steps) {
    const std::string type = step.value("type", "");
    if (type == "Prepend" && step.value("prepend", "") == kBlank) {
      prefix = true;
    } else if (type == "Replace" && step.value("content", "") == kBlank &&
               step.value("pattern", PlainJson::object()).value("String", "") == " ") {
      blanks = true;
    } else {
      file.refuse("\"normalizer\" " + step.dump());
    }
  }
  if (!blanks) {
    file.refuse("\"normalizer\" writes no " + std::string(kBlank) + " for a blank");
  }
  return prefix;
}

// What a merge earlier makes comes first; pieces that none makes are found by themselves.
std::vector<double> scores_of(const TokenizerFile& file, const Vocabulary& vocabulary) {
  std::vector<double> scores(vocabulary.texts().size(), 0);
  for (std::size_t id = 0; id < scores.size(); ++id) {
    if (vocabulary.is_unused(id)) {
      scores[id] = kScoreOfNoToken;
    }
  }
  double place = 0;
  for (const PlainJson& merge : file.content.at("model").at("merges")) {
    const auto [left, right] = parts_of_merge(file, merge);
    --place;
    const auto id = vocabulary.id_of(left + right);
    if (id && scores[static_cast<std::size_t>(*id)] == 0) {
      scores[static_cast<std::size_t>(*id)] = place;
    }
  }
  return scores;
}

void add_sentence_piece(const TokenizerFile& file, Vocabulary& vocabulary,
                        std::vector<KeyValue>& keys) {
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.set_type(fmt::format("<0x{:02X}>", byte), TokenType::Byte);
  }
  const PlainJson unknown = file.content.at("model").value("unk_token", PlainJson());
  if (unknown.is_string()) {
    vocabulary.set_type(unknown, TokenType::Unknown);
  }
  keys.push_back({"tokenizer.ggml.model", text_value("llama")});
  keys.push_back({"tokenizer.ggml.pre", text_value("default")});
  keys.push_back({"tokenizer.ggml.tokens", texts_value(vocabulary.texts())});
  keys.push_back({"tokenizer.ggml.scores", float32s_value(scores_of(file, vocabulary))});
  keys.push_back({"tokenizer.ggml.token_type", int32s_value(vocabulary.types())});
  keys.push_back({"tokenizer.ggml.add_space_prefix", bool_value(has_space_prefix(file))});
}

void add_byte_level(const TokenizerFile& file, const Vocabulary& vocabulary,
                    std::vector<KeyValue>& keys) {
  const PlainJson normalizer = file.field("normalizer");
  if (!normalizer.is_null() && normalizer.value("type", "") != "NFC") {
    file.refuse("\"normalizer\" " + normalizer.dump());
  }
  std::vector<std::string> merges;
  for (const PlainJson& merge : file.content.at("model").at("merges")) {
    const auto [left, right] = parts_of_merge(file, merge);
    merges.push_back(left + " " + right);
  }
  keys.push_back({"tokenizer.ggml.model", text_value("gpt2")});
  keys.push_back(
      {"tokenizer.ggml.pre", text_value(pre_name(file.field("pre_tokenizer"), file.path))});
  keys.push_back({"tokenizer.ggml.tokens", texts_value(vocabulary.texts())});
  keys.push_back({"tokenizer.ggml.token_type", int32s_value(vocabulary.types())});
  keys.push_back({"tokenizer.ggml.merges", texts_value(std::move(merges))});
}

// The tokens that are added before and after a text.
struct AddedTokens {
  std::vector<std::string> before;
  std::vector<std::string> after;
};

void collect_added(const TokenizerFile& file, const PlainJson& processor, AddedTokens& added) {
  if (processor.is_null()) {
    return;
  }
  const std::string type = processor.value("type", "");
  if (type == "Sequence") {
    for (const PlainJson& one : processor.value("processors", PlainJson::array())) {
      collect_added(file, one, added);
    }
  } else if (type == "TemplateProcessing") {
    bool is_before = true;
    for (const PlainJson& item : processor.value("single", PlainJson::array())) {
      if (item.contains("SpecialToken")) {
        (is_before ? added.before : added.after).push_back(item.at("SpecialToken").value("id", ""));
      } else {
        is_before = false;
      }
    }
  } else if (type != "ByteLevel") {
    file.refuse("\"post_processor\" of type \"" + type + '"');
  }
}

void add_named_tokens(const TokenizerFile& file, const std::string& folder,
                      const Vocabulary& vocabulary, std::vector<KeyValue>& keys) {
  const PlainJson named = PlainJson(text::ChatTemplate::tokens_of_folder(folder));
  const auto token_named = [&](const char* name) -> std::optional<std::string> {
    const PlainJson token = named.value(name, PlainJson());
    return token.is_string() ? std::optional(token.get<std::string>()) : std::nullopt;
  };
  for (const auto& [name, key] :
       {std::pair("bos_token", "bos"), {"unk_token", "unknown"}, {"pad_token", "padding"}}) {
    const auto token = token_named(name);
    const auto id = token ? vocabulary.id_of(*token) : std::nullopt;
    if (id) {
      keys.push_back({fmt::format("tokenizer.ggml.{}_token_id", key), uint32_value(*id)});
    }
  }
  AddedTokens added;
  collect_added(file, file.field("post_processor"), added);
  const auto adds = [&](const std::vector<std::string>& tokens, const char* name) {
    if (tokens.empty()) {
      return false;
    }
    if (tokens.size() > 1 || tokens[0] != token_named(name)) {
      file.refuse(fmt::format("\"post_processor\" adds {} where only {} can stand",
                              sherd::files::in_quotes(tokens[0]), name));
    }
    return true;
  };
  keys.push_back({"tokenizer.ggml.add_bos_token", bool_value(adds(added.before, "bos_token"))});
  keys.push_back({"tokenizer.ggml.add_eos_token", bool_value(adds(added.after, "eos_token"))});
}

// llama.cpp has three keys for tokens that end an answer.
std::vector<std::string> add_stop_tokens(const std::string& folder, const Vocabulary& vocabulary,
                                         std::vector<KeyValue>& keys) {
  const text::SpecialIds ids =
      text::read_special_ids(folder, [&](const std::string& token) -> std::optional<std::int32_t> {
        const auto id = vocabulary.id_of(token);
        return id ? std::optional(static_cast<std::int32_t>(*id)) : std::nullopt;
      });
  std::vector<std::int32_t> stop = ids.stop;
  std::stable_partition(stop.begin(), stop.end(), [&](std::int32_t id) { return id == ids.end; });
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < stop.size(); ++i) {
    static constexpr const char* kNames[] = {"eos", "eot", "eom"};
    if (i < std::size(kNames)) {
      keys.push_back({fmt::format("tokenizer.ggml.{}_token_id", kNames[i]), uint32_value(stop[i])});
    }
    if (static_cast<std::size_t>(stop[i]) < vocabulary.texts().size()) {
      tokens.push_back(vocabulary.texts()[static_cast<std::size_t>(stop[i])]);
    }
  }
  return tokens;
}

void check_kind(const TokenizerFile& file) {
  const PlainJson model = file.field("model");
  if (!model.is_object() || model.value("type", "") != "BPE" ||
      !model.value("vocab", PlainJson()).is_object() ||
      !model.value("merges", PlainJson()).is_array()) {
    file.refuse("\"model\" is no BPE with \"vocab\" and \"merges\"");
  }
}

}  // namespace

TokenizerKeys tokenizer_keys(const std::string& folder, std::int64_t embedding_rows,
                             const std::string& model_name) {
  const std::string path = folder + "/tokenizer.json";
  const TokenizerFile file{path, sherd::files::read_json<PlainJson>(path, kMaxTokenizerBytes)};
  check_kind(file);
  TokenizerKeys found;
  try {
    check_sides_of_tokens(file, model_name);
    Vocabulary vocabulary(file, embedding_rows);
    if (file.content.at("model").value("byte_fallback", false)) {
      add_sentence_piece(file, vocabulary, found.keys);
    } else {
      add_byte_level(file, vocabulary, found.keys);
    }
    add_named_tokens(file, folder, vocabulary, found.keys);
    found.stop_tokens = add_stop_tokens(folder, vocabulary, found.keys);
  } catch (const nlohmann::json::exception& fault) {
    file.refuse(std::string("cannot be read (") + fault.what() + ')');
  }
  if (const auto chat = text::ChatTemplate::from_folder(folder)) {
    found.keys.push_back({"tokenizer.chat_template", text_value(chat->source())});
  }
  return found;
}

}  // namespace llm::gguf
