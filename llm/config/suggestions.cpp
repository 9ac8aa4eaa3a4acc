// Suggestions for unknown names.

#include <algorithm>

#include "llm/config/foreign_keys.h"
#include "llm/config/nearest_name.h"
#include "llm/config/reading.h"

namespace llm::config {
namespace {

constexpr std::size_t kGuessable = 3;  ///< a shorter name is near to too many

std::string did_you_mean(const std::string& name) {
  return "; did you mean " + name + "?";
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

/// A key in parts: "data.train[0]" and "limit".
struct Split {
  explicit Split(const std::string& key) {
    const std::size_t dot = key.rfind('.');
    section = dot == std::string::npos ? "" : key.substr(0, dot);
    name = dot == std::string::npos ? key : key.substr(dot + 1);
  }
  std::string section;
  std::string name;
};

/// Keys that may be given, each as it would be written.
std::vector<std::string> known_keys() {
  RunConfig config = with_items();
  std::vector<std::string> keys;
  for (const Leaf& leaf : leaves(config)) {
    keys.push_back(leaf.key);
  }
  for (const Field& section : schema(config).fields) {
    for (const Field& field :
         section.table() != nullptr ? section.table()->fields : std::vector<Field>()) {
      if (field.list() != nullptr && !field.list()->shorthand.empty()) {
        keys.push_back(section.name + "." + field.name);
      }
    }
  }
  return keys;
}

/// "data.train[3]" as "data.train[0]", which `known_keys` has.
std::string first_item(const std::string& section) {
  const std::size_t bracket = section.find('[');
  return bracket == std::string::npos ? section : section.substr(0, bracket) + "[0]";
}

/// The key with this name, or with the nearest one that is near enough, among those `accepted`.
template <class Accepted>
std::string key_near(const std::string& name, bool exactly, Accepted accepted) {
  std::vector<std::string> names;
  std::vector<std::string> keys;
  for (const std::string& key : known_keys()) {
    if (accepted(key)) {
      keys.push_back(key);
      names.push_back(Split(key).name);
    }
  }
  const std::string wanted = exactly ? name : nearest_name(name, names);
  const auto found = std::find(names.begin(), names.end(), wanted);
  return found == names.end() ? "" : keys[static_cast<std::size_t>(found - names.begin())];
}

std::string in_section(const std::string& section) {
  const bool item = section.ends_with("[0]");
  return item ? "[[" + section.substr(0, section.size() - 3) + "]]" : "[" + section + "]";
}

}  // namespace

std::string suggest_key(const std::string& key, const std::string& mark) {
  if (const ForeignKey* foreign = foreign_key(key)) {
    return name_here(*foreign, mark);
  }
  const Split split(key);
  const std::string section = first_item(split.section);
  const auto anywhere = [](const std::string&) { return true; };
  const auto beside = [&](const std::string& known) { return Split(known).section == section; };
  const auto in_item = [&](const std::string& known) {  // data.train.limit
    return Split(known).section == section + "[0]";
  };
  std::vector<std::string> names;
  for (const std::string& known : known_keys()) {
    if (beside(known)) {
      names.push_back(Split(known).name);
    }
  }
  const bool guessable = split.section.empty() || split.name.size() >= kGuessable;
  std::string meant = key_near(split.name, true, in_item);
  if (meant.empty()) {
    meant = key_near(split.name, true, anywhere);
  }
  if (meant.empty() && (!names.empty() || guessable)) {
    meant =
        names.empty() ? key_near(split.name, false, anywhere) : key_near(split.name, false, beside);
  }
  if (!meant.empty()) {
    return did_you_mean(mark + meant);
  }
  return names.empty() ? suggest_section(split.section.empty() ? key : split.section)
                       : "; known in " + in_section(section) + " are " + list(names);
}

std::string suggest_section(const std::string& section) {
  if (const ForeignKey* foreign = foreign_key(section)) {
    return name_here(*foreign, "");
  }
  RunConfig config;
  std::vector<std::string> names;
  for (const Field& known : schema(config).fields) {
    if (!known.is_not_yet()) {
      names.push_back(known.name);
    }
  }
  const std::string nearest = nearest_name(section, names);
  return nearest.empty() ? "; known sections are " + list(names)
                         : did_you_mean("[" + nearest + "]");
}

}  // namespace llm::config
