#include "app/flag_words.h"

#include <algorithm>
#include <regex>

#include "llm/setup/agreement.h"
#include "sherd/error.h"

namespace app {

namespace {

// A key of [data] that a verb may have as a flag, or the format of a data set, with its value.
constexpr const char* kKeys =
    "(?:data\\.(chat_template|max_answer_tokens|max_bad_samples|max_length|on_bad_sample|"
    "on_template_mismatch|special_tokens_in_text)|\\b(format)(?= = \"))\\b"
    "(?: = \"?([a-z_0-9]+)\"?)?";

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
  }
  const std::regex keys(kKeys);
  std::string told;
  auto end = message.cbegin();
  for (std::sregex_iterator found(message.begin(), message.end(), keys), none; found != none;
       ++found) {
    const std::smatch& match = *found;
    const std::string flag = flag_of(match[1].matched ? match.str(1) : match.str(2));
    told.append(end, match[0].first);
    told += !has(flag) ? match.str() : flag + (match[3].matched ? " " + match.str(3) : "");
    end = match[0].second;
  }
  return told.append(end, message.cend());
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
