#include "llm/config/reading.h"

#include <algorithm>

#include <fmt/core.h>

namespace llm::config {
namespace {

std::string now_text(const Leaf& leaf, const OldName& old) {
  return leaf.key + (old.value ? " = " + leaf.text() : "");
}

// Lists have no text, and so do not match an old value that is the empty string.
bool has_text(const Raw& raw) {
  return std::holds_alternative<std::string>(raw) || std::holds_alternative<std::int64_t>(raw) ||
         std::holds_alternative<double>(raw) || std::holds_alternative<FlagText>(raw);
}

}  // namespace

std::string not_there_yet(const Field& field) {
  return "not supported yet: " + field.doc;
}

std::string Reading::set(const std::string& key, const Field& field, const Given& given) {
  if (!given_keys.insert(key).second) {
    return given.where() + ": given twice" +
           (given.key == key ? "" : ", " + key + " and its old name");
  }
  places[key] = given.place;
  faulty_keys.erase(key);
  Raw raw = given.raw;
  if (field.old_value && has_text(raw) && raw_text(raw) == field.old_value->was) {
    raw = FlagText{field.old_value->is};
    notes.push_back(
        given.where() + ": is now written " + given.mark + key +
        (given.mark.empty() ? " = \"" + field.old_value->is + "\"" : " " + field.old_value->is));
  }
  const Value& value = *field.value();
  if (value.set(raw)) {
    return "";
  }
  faulty_keys.insert(key);
  const std::string now = given.key == key ? "" : " (now " + given.mark + key + ")";
  const auto& planned = value.planned_words;
  const bool later = std::find(planned.begin(), planned.end(), raw_text(raw)) != planned.end();
  return given.where() + now + ": " + (later ? "not supported yet; " : "") + "must be " +
         value.kind;
}

std::string Reading::set_renamed(const std::vector<Renamed>& fields, const Given& given) {
  std::string now;
  for (const Renamed& renamed : fields) {
    const Found found = find(config, renamed.now.key);
    Given one = given;
    if (renamed.old.value) {
      one.raw = FlagText{renamed.old.value(raw_text(given.raw))};
    }
    const std::string fault = set(found.key, *found.field, one);
    if (!fault.empty()) {
      return fault;
    }
    now += (now.empty() ? "" : " and ") + given.mark +
           now_text({found.key, *found.field}, renamed.old);
  }
  notes.push_back((given.mark.empty() ? given.place + ": " : "") + given.mark + given.key +
                  " is now " + now);
  return "";
}

std::string Reading::set_shorthand(const std::string& key, const TableList& list,
                                   const Given& given) {
  if (list.size() > 1) {
    return fmt::format("{}: there are {} of them: give {}{}[0].{} or another", given.where(),
                       list.size(), given.mark, key, list.shorthand);
  }
  const Found found = find(config, key + "[0]." + list.shorthand);
  Given item = given;
  item.key = found.key;
  return set(found.key, *found.field, item);
}

}  // namespace llm::config
