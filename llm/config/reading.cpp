#include "llm/config/reading.h"

#include <algorithm>

#include "llm/config/nearest_name.h"

namespace llm::config {
namespace {

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

}  // namespace

const Field* Reading::find(std::string_view key) const {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const Field& field) { return field.key() == key; });
  return found == fields.end() ? nullptr : &*found;
}

std::string Reading::suggest_key(const std::string& key, const std::string& mark) const {
  const std::size_t dot = key.find('.');
  const std::string section = key.substr(0, dot);
  const std::string name = dot == std::string::npos ? key : key.substr(dot + 1);
  std::vector<std::string> beside;  // names of the same section
  std::vector<std::string> names;   // of all sections
  for (const Field& field : fields) {
    names.push_back(field.name);
    if (field.section == section) {
      beside.push_back(field.name);
    }
    if (field.name == name) {
      return did_you_mean(mark + field.key());
    }
  }
  const std::string nearest = nearest_name(name, beside.empty() ? names : beside);
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const Field& field) {
    return field.name == nearest && (beside.empty() || field.section == section);
  });
  if (found != fields.end()) {
    return did_you_mean(mark + found->key());
  }
  return beside.empty() ? suggest_section(section)
                        : "; known in [" + section + "] are " + list(beside);
}

std::string Reading::suggest_section(const std::string& section) {
  std::vector<std::string> names;
  for (const Section& known : sections()) {
    names.push_back(known.name);
  }
  const std::string nearest = nearest_name(section, names);
  return nearest.empty() ? "; known sections are " + list(names)
                         : did_you_mean("[" + nearest + "]");
}

}  // namespace llm::config
