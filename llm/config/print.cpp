#include "llm/config/fields.h"

namespace llm::config {
namespace {

std::string line_of(const Field& field, const std::string& value) {
  return field.name + " = " + value + "\n";
}

/// Values first: what follows a table's name belongs to that table.
void print(const Table& table, const std::string& key, std::string& text) {
  for (const Field& field : table.fields) {
    if (field.value() != nullptr) {
      text += line_of(field, field.value()->text());
    } else if (field.list() != nullptr && field.list()->size() == 0) {
      text += line_of(field, "[]");
    }
  }
  for (const Field& field : table.fields) {
    const std::string inner = key + "." + field.name;
    if (field.table() != nullptr) {
      text += "\n[" + inner + "]\n";
      print(*field.table(), inner, text);
    }
    for (std::size_t i = 0; field.list() != nullptr && i < field.list()->size(); ++i) {
      text += "\n[[" + inner + "]]\n";
      print(field.list()->item(i), inner, text);
    }
  }
}

}  // namespace

std::string to_toml(const RunConfig& config) {
  RunConfig copy = config;
  std::string text;
  for (const Field& section : schema(copy).fields) {
    if (section.table() != nullptr) {
      text += (text.empty() ? "[" : "\n[") + section.name + "]\n";
      print(*section.table(), section.name, text);
    }
  }
  return text;
}

}  // namespace llm::config
