#include "llm/config/toml_file.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include <fmt/core.h>

#include "llm/config/toml_nodes.h"

namespace llm::config {
namespace {

/// The length of the first `count` characters of UTF-8 text; toml++ counts columns in characters.
std::size_t bytes_of(std::string_view text, std::size_t count) {
  std::size_t bytes = 0;
  while (bytes < text.size() && count > 0) {
    do {
      ++bytes;
    } while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80);
    --count;
  }
  return bytes;
}

/// The part of `text` that a node was read from, as it may stand in a message: one line, not too
/// long.
std::string shown(std::string_view text, const toml::node& node) {
  const toml::source_region& source = node.source();
  for (toml::source_index line = 1; line < source.begin.line; ++line) {
    text.remove_prefix(text.find('\n') + 1);
  }
  text = text.substr(0, text.find_first_of("\r\n"));
  const std::size_t first = bytes_of(text, source.begin.column - 1);
  const bool one_line = source.end.line == source.begin.line;
  const std::size_t last = one_line ? bytes_of(text, source.end.column - 1) : text.size();
  const std::size_t longest = bytes_of(text.substr(first), 60);
  const bool whole = one_line && last - first <= longest;
  return std::string(text.substr(first, std::min(last - first, longest))) + (whole ? "" : "…");
}

/// How a table of a list's item is written: `columns = { prompt = …, completion = … }`.
std::string example(const Field& field) {
  std::string keys;
  for (const Field& inner : field.table()->fields) {
    keys += (keys.empty() ? "" : ", ") + inner.name + " = …";
  }
  return field.name + " = { " + keys + " }";
}

class TomlReader {
 public:
  TomlReader(std::string file, std::string_view text, Reading& reading)
      : file_(std::move(file)), text_(text), reading_(reading) {}

  void read(const toml::table& root) {
    for (const auto& [name, node] : root) {
      const std::string section(name.str());
      const Found found = find(reading_.config, section);
      if (found.field && found.field->is_not_yet()) {
        fault(name, section + ": " + not_there_yet(*found.field));
      } else if (!found.field && !node.is_table()) {
        fault(name, section + ": not in a section" + suggest_key(section, ""));
      } else if (!found.field) {
        fault(name, section + ": unknown section" + suggest_section(section));
      } else if (!node.is_table()) {
        fault(name, section + " = " + shown(text_, node) + ": a section is written [name]");
      } else {
        read_table(section, *node.as_table());
      }
    }
    // Old names come last: what they have become may be given too, which is a fault of theirs.
    for (const auto& [given, now, line] : old_) {
      fault_at(line, reading_.set_renamed(now, given));
    }
    // toml++ gives keys in alphabetical order; a reader of messages goes down the file.
    std::stable_sort(faults_.begin(), faults_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [line, text] : faults_) {
      reading_.faults.push_back(text);
    }
  }

 private:
  struct Old {
    Given given;
    std::vector<Renamed> now;
    std::uint32_t line;
  };

  /// False if it is not an old name.
  bool read_old_name(const std::string& key, const toml::key& name, const toml::node& node) {
    const std::vector<Renamed> now = renamed(key);
    if (!now.empty()) {
      old_.push_back({given_at(key, name, node), now, name.source().begin.line});
    }
    return !now.empty();
  }

  void read_table(const std::string& prefix, const toml::table& table) {
    for (const auto& [name, node] : table) {
      const std::string key = prefix + "." + std::string(name.str());
      const Found found = find(reading_.config, key);
      if (!found.field) {
        if (!read_old_name(key, name, node)) {
          fault(name, key + ": unknown key" + suggest_key(key, ""));
        }
      } else if (found.field->is_not_yet()) {
        fault(name, key + ": " + not_there_yet(*found.field));
      } else if (found.field->value() != nullptr) {
        fault_at(name.source().begin.line,
                 reading_.set(key, *found.field, given_at(key, name, node)));
      } else if (found.field->list() != nullptr) {
        read_list(key, *found.field->list(), name, node);
      } else if (node.is_table()) {
        read_table(key, *node.as_table());
      } else {
        fault(name,
              key + " = " + shown(text_, node) + ": must be a table: " + example(*found.field));
      }
    }
  }

  void read_list(const std::string& key, const TableList& list, const toml::key& name,
                 const toml::node& node) {
    const toml::array* array = node.as_array();
    const bool strings = !list.shorthand.empty();
    if (strings && node.is_string()) {
      list.resize(1);
      fault_at(name.source().begin.line,
               reading_.set_shorthand(key, list, given_at(key, name, node)));
      return;
    }
    const auto is_item = [&](const toml::node& item) {
      return item.is_table() || (strings && item.is_string());
    };
    if (array == nullptr || !std::all_of(array->begin(), array->end(), is_item)) {
      fault(name, key + " = " + shown(text_, node) + ": must be " +
                      (strings ? "a string, strings, or " : "") + "tables [[" + key + "]]");
      return;
    }
    reading_.places[key] = place(name.source().begin.line);
    list.resize(array->size());
    for (std::size_t i = 0; i < array->size(); ++i) {
      const std::string item = fmt::format("{}[{}]", key, i);
      const toml::node& given = (*array)[i];
      if (given.is_table()) {
        read_table(item, *given.as_table());
      } else {
        const Found found = find(reading_.config, item + "." + list.shorthand);
        fault_at(given.source().begin.line,
                 reading_.set(found.key, *found.field, given_at(found.key, name, given)));
      }
    }
  }

  [[nodiscard]] Given given_at(const std::string& key, const toml::key& name,
                               const toml::node& node) const {
    return {.key = key,
            .shown = key + " = " + shown(text_, node),
            .place = place(name.source().begin.line),
            .mark = "",
            .raw = raw_of(node)};
  }
  [[nodiscard]] std::string place(std::uint32_t line) const {
    return fmt::format("{}:{}", file_, line);
  }
  void fault(const toml::key& name, const std::string& text) {
    const std::uint32_t line = name.source().begin.line;
    fault_at(line, place(line) + ": " + text);
  }
  void fault_at(std::uint32_t line, const std::string& text) {
    if (!text.empty()) {
      faults_.emplace_back(line, text);
    }
  }

  std::string file_;
  std::string_view text_;
  Reading& reading_;
  std::vector<Old> old_;
  std::vector<std::pair<std::uint32_t, std::string>> faults_;  // line and text
};

}  // namespace

void read_toml_text(const std::string& text, const std::string& name, Reading& reading) {
  reading.file_was_read = false;
  reading.given_keys.clear();
  try {
    const toml::table root = toml::parse(text, name);
    reading.file_was_read = true;
    TomlReader(name, text, reading).read(root);
  } catch (const toml::parse_error& error) {
    const toml::source_position& place = error.source().begin;
    const bool is_data = text.starts_with('{');  // TOML never begins so
    reading.faults.push_back(fmt::format(
        "{}:{}:{}: not valid TOML: {}{}", name, place.line, place.column,
        std::string_view(error.description()),
        is_data ? ". It looks like JSON: give a recipe here, and data with --data.train" : ""));
  }
}

void read_toml(const std::filesystem::path& file, Reading& reading) {
  const auto text = toml_contents(file, reading.faults);
  reading.file_was_read = false;
  if (text) {
    read_toml_text(*text, file.string(), reading);
  }
}

std::string quote(const std::string& text) {
  std::ostringstream stream;
  const toml::value<std::string> value(text);
  stream << toml::toml_formatter(
      value, toml::toml_formatter::default_flags & ~toml::format_flags::allow_literal_strings);
  return stream.str();
}

}  // namespace llm::config
