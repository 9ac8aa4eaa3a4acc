#include "app/flag_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "llm/setup/agreement.h"
#include "sherd/error.h"

namespace app {

namespace {

// Keys of [data] that a verb may have as flags.
constexpr std::array kDataKeys = {
    "chat_template", "max_answer_tokens",    "max_bad_samples",       "max_length",
    "on_bad_sample", "on_template_mismatch", "special_tokens_in_text"};

std::string flag_of(std::string key) {
  if (key == "chat_template") {
    return "--template";
  }
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

void replace(std::string& text, const std::string& part, const std::string& by) {
  if (const std::size_t at = text.find(part); at != std::string::npos) {
    text.replace(at, part.size(), by);
  }
}

bool is_of_a_word(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

// `key` and its value, if it has one, become `flag` and the value. Only where `next` follows the
// key.
void replace_key(std::string& text, const std::string& key, const std::string& flag,
                 const std::string& next = "") {
  for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at)) {
    std::size_t end = at + key.size();
    if ((at > 0 && is_of_a_word(text[at - 1])) || is_of_a_word(text[end]) ||
        text.compare(end, next.size(), next) != 0) {
      at = end;
      continue;
    }
    std::string told = flag;
    if (text.compare(end, 3, " = ") == 0) {
      const std::size_t value = end + 3 + (text[end + 3] == '"' ? 1 : 0);
      const std::size_t behind = std::min(
          text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789", value), text.size());
      if (behind > value) {
        told += " " + text.substr(value, behind - value);
        end = behind + (text[behind] == '"' ? 1 : 0);
      }
    }
    text.replace(at, end - at, told);
    at += told.size();
  }
}

}  // namespace

FlagWords::FlagWords(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options()) {
    flags_.insert(option->get_name(/*positional=*/false, /*all_options=*/false));
  }
}

std::string FlagWords::in(std::string message) const {
  if (has("--columns")) {
    replace(message, "columns = { prompt = \"…\", completion = \"…\" }",
            "--columns PROMPT,COMPLETION");
    replace(message, " (or columns = { messages = \"…\" })", "");
  }
  if (has("--format")) {
    replace(message, "set `format`", "give --format");
    replace_key(message, "format", "--format", " = \"");
  }
  for (const std::string key : kDataKeys) {
    if (has(flag_of(key))) {
      replace_key(message, "data." + key, flag_of(key));
    }
  }
  return message;
}

int FlagWords::run(const std::function<int()>& work) const {
  try {
    return work();
  } catch (const llm::setup::ReportedElsewhere&) {
    throw;
  } catch (const sherd::Error& error) {
    throw sherd::Error(error.code(), in(error.what()));
  }
}

}  // namespace app
