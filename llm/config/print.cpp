#include "llm/config/fields.h"
#include "llm/config/value.h"

namespace llm::config {
namespace {

std::string default_text(const Field& field) {
  const auto* const* text = std::get_if<std::string*>(&field.slot);
  if (text != nullptr && (*text)->empty()) {
    return field.required ? "required" : "none";
  }
  return value_text(field);
}

/// "an integer of at least 1, in samples".
std::string kind(const Field& field) {
  return field.expectation() + (field.unit.empty() ? "" : ", in " + field.unit);
}

}  // namespace

std::string to_toml(const RunConfig& config) {
  RunConfig copy = config;
  std::string text;
  std::string section;
  for (const Field& field : fields_of(copy)) {
    if (field.section != section) {
      text += (section.empty() ? "[" : "\n[") + field.section + "]\n";
      section = field.section;
    }
    text += field.name + " = " + value_text(field) + "\n";
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> key_values(const RunConfig& config) {
  RunConfig copy = config;
  std::vector<std::pair<std::string, std::string>> values;
  for (const Field& field : fields_of(copy)) {
    values.emplace_back(field.key(), value_text(field));
  }
  return values;
}

std::string reference_markdown() {
  RunConfig defaults;
  const std::vector<Field> fields = fields_of(defaults);
  std::string text =
      "# Configuration\n\n"
      "<!-- Generated from llm/config/fields.cpp. To write it anew:\n"
      "     cmake --build build/dev --target config_reference\n"
      "     build/dev/bin/config_reference > docs/guide/configuration.md -->\n\n"
      "`sherd train run.toml` reads a TOML file with the sections below. Each key is also a flag: "
      "`--optim.lr 1e-5`\n"
      "or `--optim.lr=1e-5`; two numbers are written `--optim.betas 0.9,0.95`. A flag wins over "
      "the file, and all keys\n"
      "can be given as flags, without a file. Paths are relative to the folder in which `sherd` is "
      "started.\n\n"
      "An unknown key, a wrong type, a value out of range or a missing key ends the program with "
      "exit code 64 before\n"
      "anything is written. All faults are reported at once, each with its line or flag.\n";
  for (const Section& section : sections()) {
    text += "\n## [" + section.name + "]\n\n" + section.doc +
            "\n\n| key | value | default | meaning |\n|---|---|---|---|\n";
    for (const Field& field : fields) {
      if (field.section == section.name) {
        const std::string standard = default_text(field);
        const bool word = standard == "required" || standard == "none";
        text += "| `" + field.name + "` | " + kind(field) + " | " +
                (word ? standard : "`" + standard + "`") + " | " + field.doc + " |\n";
      }
    }
  }
  return text;
}

std::string help_text() {
  RunConfig defaults;
  std::string text;
  for (const Field& field : fields_of(defaults)) {
    text += "  --" + field.key() + "  (" + default_text(field) + ")\n      " + field.doc + ": " +
            kind(field) + "\n";
  }
  return text;
}

}  // namespace llm::config
