// What people read about the keys: the reference page and --help.

#include <fmt/format.h>

#include "llm/config/fields.h"
#include "llm/config/run_config.h"

namespace llm::config {
namespace {

/// Words for a default that is not a value: "required", "none".
std::string default_words(const Field& field) {
  if (!field.default_words.empty()) {
    return field.default_words;
  }
  const bool empty = field.value()->text() == R"("")";
  return !empty ? "" : field.required ? "required" : "none";
}

std::string default_text(const Field& field) {
  const std::string words = default_words(field);
  return words.empty() ? field.value()->text() : words;
}

/// "an integer of at least 1, in samples".
std::string kind(const Field& field) {
  return field.value()->kind + (field.unit.empty() ? "" : ", in " + field.unit);
}

const char* on_resume_words(OnResume on_resume) {
  return on_resume == OnResume::Fixed ? "fixed" : on_resume == OnResume::Numbers ? "numbers" : "";
}

std::string row(const Field& field, const std::string& prefix = "") {
  const std::string words = default_words(field);
  return fmt::format("| `{}` | {} | {} | {} | {} |\n", prefix + field.name, kind(field),
                     words.empty() ? "`" + field.value()->text() + "`" : words,
                     on_resume_words(field.on_resume), field.doc);
}

void add_not_yet(const Table& table, const std::string& prefix, std::vector<std::string>& found) {
  for (const Field& field : table.fields) {
    const std::string name = prefix + field.name;
    if (field.is_not_yet()) {
      found.push_back(fmt::format("`{}` ({})", name, field.doc));
    } else if (field.table() != nullptr) {
      add_not_yet(*field.table(), name + ".", found);
    } else if (field.value() != nullptr) {
      for (const std::string& word : field.value()->planned_words) {
        found.push_back(fmt::format("`{} = \"{}\"`", name, word));
      }
    }
  }
}

/// What is refused as not there yet, in one sentence.
std::string not_yet(const Table& table) {
  std::vector<std::string> found;
  add_not_yet(table, "", found);
  return found.empty() ? "" : fmt::format("\nNot supported yet: {}.\n", fmt::join(found, ", "));
}

void describe(const Table& table, const std::string& title, const std::string& doc,
              std::string& text) {
  text += fmt::format(
      "\n## {}\n\n{}\n\n"
      "| key | value | default | on resume | meaning |\n|---|---|---|---|---|\n",
      title, doc);
  for (const Field& field : table.fields) {
    text += field.value() != nullptr ? row(field) : "";
    for (const Field& inner :
         field.table() != nullptr ? field.table()->fields : std::vector<Field>()) {
      text += inner.value() != nullptr ? row(inner, field.name + ".") : "";
    }
  }
  text += not_yet(table);
}

std::string described(RunConfig& config) {
  std::string text;
  const Table root = schema(config);
  for (const Field& section : root.fields) {
    if (section.table() == nullptr) {
      continue;
    }
    describe(*section.table(), "[" + section.name + "]", section.doc, text);
    for (const Field& field : section.table()->fields) {
      if (field.list() != nullptr) {
        describe(field.list()->item(0), fmt::format("[[{}.{}]]", section.name, field.name),
                 field.doc, text);
      }
    }
  }
  for (const Field& section : root.fields) {
    if (section.is_not_yet()) {
      text += fmt::format("\n## [{}]\n\nNot supported yet: {}.\n", section.name, section.doc);
    }
  }
  return text;
}

std::string renamed_keys() {
  std::string text = "\n## Renamed keys\n\n| old | new |\n|---|---|\n";
  for (const Renamed& key : all_renamed()) {
    text += fmt::format("| `{}` | `{}` |\n", key.old.key, key.now.key);
  }
  return text;
}

}  // namespace

std::string reference_markdown() {
  RunConfig config = with_items();
  return "# Configuration\n\n"
         "<!-- Generated from llm/config/schema.cpp. To regenerate it:\n"
         "     cmake --build build/dev --target config_reference\n"
         "     build/dev/bin/config_reference > docs/guide/configuration.md -->\n\n"
         "`sherd train run.toml` reads a TOML file with the sections below. Each key is also a "
         "flag:\n"
         "`--optim.lr 1e-5` or `--optim.lr=1e-5`; two numbers are written `--optim.betas "
         "0.9,0.95`.\n"
         "A flag overrides the file; a file is not required. Paths are relative to the current "
         "folder.\n\n"
         "`[[data.train]]` begins an item of a list. Flags number the items from 0, "
         "`--data.train[0].limit 250`;\n"
         "the next unused number adds an item. `data.train = \"f.json\"` and `--data.train "
         "f.json` are short for one\n"
         "item with that path, `data.train = [\"f.json\", \"g.json\"]` for two.\n\n"
         "An unknown key, a wrong type, a value out of range or a missing key ends the program "
         "with exit code 64\n"
         "before anything is written. All faults are reported at once, each with its line or "
         "flag. Old names are\n"
         "read until version 1.0, with a message that gives the new name.\n\n"
         "Words may be in capitals and with `-` for `_`, and dtypes may have short names: "
         "`FULL_SHARD` is\n"
         "`full_shard`, `bf16` is `bfloat16`. A key of another tool, such as `learning_rate`, is "
         "an error that names\n"
         "the key here. `sherd train runs/mine` takes the configuration of the run in that folder "
         "and resumes it.\n\n"
         "On resume a `fixed` key must keep its value (64 otherwise). A `numbers` key may change: "
         "the run reports\n"
         "and logs the change and uses the new value from the next step. All other keys may "
         "change freely. A key\n"
         "that a checkpoint of an earlier version lacks has the value that the earlier version "
         "used.\n" +
         described(config) + renamed_keys();
}

std::string help_text() {
  RunConfig config = with_items();
  std::string text;
  for (const Leaf& leaf : leaves(config)) {
    text += fmt::format("  --{}  ({})\n      {}: {}\n", leaf.key, default_text(leaf.field),
                        leaf.field.doc, kind(leaf.field));
  }
  return text;
}

}  // namespace llm::config
