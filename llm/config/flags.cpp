#include "llm/config/flags.h"

#include <optional>

namespace llm::config {
namespace {

const std::string kMark = "--";

bool is_flag(const std::string& word) {
  return word.starts_with(kMark);
}

/// One flag taken from the words: its key, and its value if it has one.
struct Flag {
  std::string key;
  std::optional<std::string> value;
};

Flag take(std::span<const std::string>& words) {
  const std::string word = words.front().substr(kMark.size());
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

std::string needs_value(const std::string& key, const std::string& kind, Reading& reading) {
  reading.places[key] = kMark + key;
  reading.faulty_keys.insert(key);
  return kMark + key + ": needs a value: " + kind;
}

std::string fault_of(const Flag& flag, Reading& reading) {
  const Given given{.key = flag.key,
                    .shown = kMark + flag.key + " " + flag.value.value_or(""),
                    .place = kMark + flag.key,
                    .mark = kMark,
                    .raw = FlagText{flag.value.value_or("")}};
  const Found found = find(reading.config, flag.key);
  if (!found.field) {
    const std::vector<Renamed> now = renamed(flag.key);
    if (now.empty()) {
      return kMark + flag.key + ": unknown flag" + suggest_key(flag.key, kMark);
    }
    return flag.value ? reading.set_renamed(now, given)
                      : needs_value(flag.key, now.front().now.field.value()->kind, reading);
  }
  if (found.field->is_not_yet()) {
    return kMark + flag.key + ": " + not_there_yet(*found.field);
  }
  if (const Value* value = found.field->value()) {
    return flag.value ? reading.set(found.key, *found.field, given)
                      : needs_value(found.key, value->kind, reading);
  }
  const TableList* list = found.field->list();
  if (list == nullptr || list->shorthand.empty()) {
    return kMark + flag.key + ": unknown flag" + suggest_key(flag.key + ".", kMark);
  }
  return flag.value ? reading.set_shorthand(found.key, *list, given)
                    : needs_value(found.key, "a string", reading);
}

}  // namespace

void read_flags(std::span<const std::string> flags, Reading& reading) {
  reading.given_keys.clear();
  while (!flags.empty()) {
    if (!is_flag(flags.front())) {
      reading.faults.push_back(flags.front() +
                               ": not expected here: flags are --section.key value");
      flags = flags.subspan(1);
      continue;
    }
    const std::string fault = fault_of(take(flags), reading);
    if (!fault.empty()) {
      reading.faults.push_back(fault);
    }
  }
}

}  // namespace llm::config
