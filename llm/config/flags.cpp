#include "llm/config/flags.h"

#include <optional>
#include <set>

#include "llm/config/value.h"

namespace llm::config {
namespace {

bool is_flag(const std::string& word) {
  return word.starts_with("--");
}

/// One flag taken from the words: its key, and its value if it has one.
struct Flag {
  std::string key;
  std::optional<std::string> value;
};

Flag take(std::span<const std::string>& words) {
  const std::string word = words.front().substr(2);
  words = words.subspan(1);
  const std::size_t equals = word.find('=');
  if (equals != std::string::npos) {
    return {word.substr(0, equals), word.substr(equals + 1)};
  }
  if (words.empty() || is_flag(words.front())) {
    return {word, std::nullopt};
  }
  Flag flag{word, words.front()};
  words = words.subspan(1);
  return flag;
}

std::string fault_of(const Flag& flag, bool given_before, Reading& reading) {
  const Field* field = reading.find(flag.key);
  if (field == nullptr) {
    return ": unknown flag" + reading.suggest_key(flag.key, "--");
  }
  if (given_before) {
    return ": given twice";
  }
  reading.places[flag.key] = "--" + flag.key;
  reading.faulty_keys.erase(flag.key);
  if (!flag.value) {
    reading.faulty_keys.insert(flag.key);
    return ": needs a value: " + field->expectation();
  }
  if (!set_from_text(*field, *flag.value)) {
    reading.faulty_keys.insert(flag.key);
    return " " + *flag.value + ": must be " + field->expectation();
  }
  return "";
}

}  // namespace

void read_flags(std::span<const std::string> flags, Reading& reading) {
  std::set<std::string> given;
  while (!flags.empty()) {
    if (!is_flag(flags.front())) {
      reading.faults.push_back(flags.front() +
                               ": not expected here: flags are --section.key value");
      flags = flags.subspan(1);
      continue;
    }
    const Flag flag = take(flags);
    const std::string fault = fault_of(flag, !given.insert(flag.key).second, reading);
    if (!fault.empty()) {
      reading.faults.push_back("--" + flag.key + fault);
    }
  }
}

}  // namespace llm::config
