#include "llm/gguf/pre_tokenizers.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "sherd/error.h"

namespace llm::gguf {
namespace {

using PlainJson = nlohmann::json;  // finds a field by its name in a large object

// What comes before the pieces of the byte-level step.
enum class FirstStep {
  None,     // the byte-level step cuts by GPT-2's own expression
  Digits,   // each digit alone, then the same
  Pattern,  // the expression cuts, the byte-level step does not
};

struct PreTokenizer {
  const char* name;
  FirstStep first;
  const char* pattern;
};

constexpr const char* kWordsAndNumbers =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kNumbersOfThree =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBloom = " ?[^(\\s|[.,!?…。，、।۔،])]+";

const std::vector<PreTokenizer>& pre_tokenizers() {
  static const std::vector<PreTokenizer> all = {
      {"gpt-2", FirstStep::None, ""},
      {"smollm", FirstStep::Digits, ""},
      {"qwen2", FirstStep::Pattern, kWordsAndNumbers},
      {"llama-bpe", FirstStep::Pattern, kNumbersOfThree},
      {"tekken", FirstStep::Pattern, kTekken},
      {"gpt-4o", FirstStep::Pattern, kGpt4o},
      {"bloom", FirstStep::Pattern, kBloom},
      // Other names of the same, for reading.
      {"deepseek-r1-qwen", FirstStep::Pattern, kWordsAndNumbers},
      {"llama-v3", FirstStep::Pattern, kNumbersOfThree},
      {"smaug-bpe", FirstStep::Pattern, kNumbersOfThree}};
  return all;
}

// The steps of a pre-tokenizer, whether it is a sequence or one alone.
std::vector<PlainJson> steps_of(const PlainJson& pre_tokenizer) {
  if (pre_tokenizer.is_object() && pre_tokenizer.value("type", "") == "Sequence") {
    const PlainJson steps = pre_tokenizer.value("pretokenizers", PlainJson::array());
    return {steps.begin(), steps.end()};
  }
  return {pre_tokenizer};
}

bool is_byte_level(const PlainJson& step, bool use_regex) {
  return step.is_object() && step.value("type", "") == "ByteLevel" &&
         !step.value("add_prefix_space", true) && step.value("use_regex", true) == use_regex;
}

bool cuts_so(const std::vector<PlainJson>& steps, const PreTokenizer& one) {
  if (one.first == FirstStep::None) {
    return steps.size() == 1 && is_byte_level(steps[0], true);
  }
  if (steps.size() != 2 || !is_byte_level(steps[1], one.first == FirstStep::Digits)) {
    return false;
  }
  const PlainJson& first = steps[0];
  if (one.first == FirstStep::Digits) {
    return first.value("type", "") == "Digits" && first.value("individual_digits", false);
  }
  const PlainJson pattern = first.value("pattern", PlainJson::object());
  return first.value("type", "") == "Split" && first.value("behavior", "") == "Isolated" &&
         !first.value("invert", false) && pattern.is_object() &&
         pattern.value("Regex", "") == one.pattern;
}

// The regular expressions of the steps, or the whole where there is none.
std::string shown_pattern(const PlainJson& pre_tokenizer) {
  std::string shown;
  for (const PlainJson& step : steps_of(pre_tokenizer)) {
    const PlainJson pattern = step.is_object() ? step.value("pattern", PlainJson()) : PlainJson();
    if (pattern.is_object() && pattern.contains("Regex")) {
      shown += (shown.empty() ? "" : ", then ") + pattern.at("Regex").dump();
    }
  }
  return shown.empty() ? pre_tokenizer.dump() : shown;
}

}  // namespace

std::string pre_name(const PlainJson& pre_tokenizer, const std::string& place) {
  const std::vector<PlainJson> steps = steps_of(pre_tokenizer);
  const auto& all = pre_tokenizers();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const PreTokenizer& one) { return cuts_so(steps, one); });
  if (found == all.end()) {
    throw sherd::Error(sherd::ExitCode::BadData,
                       place + ": \"pre_tokenizer\" cuts texts by " + shown_pattern(pre_tokenizer) +
                           ", which llama.cpp would cut otherwise. Known are " + known_pre_names() +
                           ". Export a Hugging Face folder, with --out");
  }
  return found->name;
}

nlohmann::ordered_json pre_tokenizer_named(const std::string& name) {
  using Ordered = nlohmann::ordered_json;
  const auto& all = pre_tokenizers();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const PreTokenizer& one) { return name == one.name; });
  if (found == all.end()) {
    return nullptr;
  }
  const bool is_pattern = found->first == FirstStep::Pattern;
  Ordered bytes = {{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", !is_pattern}};
  if (found->first == FirstStep::None) {
    return bytes;
  }
  Ordered first = {{"type", "Digits"}, {"individual_digits", true}};
  if (is_pattern) {
    first = {{"type", "Split"},
             {"pattern", {{"Regex", found->pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}};
  }
  return {{"type", "Sequence"}, {"pretokenizers", Ordered::array({first, bytes})}};
}

std::string known_pre_names() {
  std::string names;
  for (const PreTokenizer& one : pre_tokenizers()) {
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  }
  return names;
}

}  // namespace llm::gguf
