#include "llm/config/toml_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

// toml++ 3.3 asserts that a table's name begins well, and only then reports one that does not
// ("[;x]"); with NDEBUG some compilers would take the assertion for granted. So it gets neither.
#undef NDEBUG
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include "llm/config/value.h"

namespace llm::config {
namespace {

/// The contents, or none after noting why they cannot be had. Bounded, for a device has no end.
std::optional<std::string> contents_of(const std::filesystem::path& file, Reading& reading) {
  std::error_code ignored;
  std::ifstream stream(file, std::ios::binary);
  std::string text(kLargestFile_bytes + 1, '\0');
  if (!stream || std::filesystem::is_directory(file, ignored)) {
    const std::string why = stream ? "is a folder" : std::strerror(errno);
    reading.faults.push_back(file.string() + ": cannot be read: " + why);
    return std::nullopt;
  }
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kLargestFile_bytes) {
    reading.faults.push_back(file.string() + ": larger than 1 MiB: no configuration");
    return std::nullopt;
  }
  return text;
}

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

bool set_from_node(const Field& field, const toml::node& node) {
  if (const auto* value = node.as_integer()) {
    return set_integer(field, value->get());
  }
  if (const auto* value = node.as_floating_point()) {
    return set_number(field, value->get());
  }
  if (const auto* value = node.as_boolean()) {
    return set_bool(field, value->get());
  }
  if (const auto* value = node.as_string()) {
    return set_string(field, value->get());
  }
  const auto* array = node.as_array();
  if (array == nullptr || array->size() != 2 || !array->get(0)->is_number() ||
      !array->get(1)->is_number()) {
    return false;
  }
  return set_pair(field, {*array->get(0)->value<double>(), *array->get(1)->value<double>()});
}

class TomlReader {
 public:
  TomlReader(const std::filesystem::path& file, std::string_view text, Reading& reading)
      : file_(file), text_(text), reading_(reading) {}

  void read(const toml::table& root) {
    for (const auto& [name, node] : root) {
      const std::string section(name.str());
      const bool known = std::any_of(sections().begin(), sections().end(),
                                     [&](const Section& s) { return s.name == section; });
      if (!known && !node.is_table()) {
        fault(name, section + ": not in a section" + reading_.suggest_key(section, ""));
      } else if (!known) {
        fault(name, section + ": unknown section" + Reading::suggest_section(section));
      } else if (!node.is_table()) {
        fault(name, section + " = " + shown(text_, node) + ": a section is written [name]");
      } else {
        read_section(section, *node.as_table());
      }
    }
    // toml++ gives keys in alphabetical order; a reader of messages goes down the file.
    std::stable_sort(faults_.begin(), faults_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [line, text] : faults_) {
      reading_.faults.push_back(text);
    }
  }

 private:
  void read_section(const std::string& section, const toml::table& table) {
    for (const auto& [name, node] : table) {
      const std::string key = section + "." + std::string(name.str());
      const Field* field = reading_.find(key);
      if (field == nullptr) {
        fault(name, key + ": unknown key" + reading_.suggest_key(key, ""));
        continue;
      }
      reading_.places[key] = place(name);
      if (!set_from_node(*field, node)) {
        reading_.faulty_keys.insert(key);
        fault(name, key + " = " + shown(text_, node) + ": must be " + field->expectation());
      }
    }
  }

  [[nodiscard]] std::string place(const toml::key& name) const {
    return file_.string() + ":" + std::to_string(name.source().begin.line);
  }
  void fault(const toml::key& name, const std::string& text) {
    faults_.emplace_back(name.source().begin.line, place(name) + ": " + text);
  }

  const std::filesystem::path& file_;
  std::string_view text_;
  Reading& reading_;
  std::vector<std::pair<std::uint32_t, std::string>> faults_;  // line and text
};

}  // namespace

void read_toml(const std::filesystem::path& file, Reading& reading) {
  const auto text = contents_of(file, reading);
  reading.file_was_read = false;
  if (!text) {
    return;
  }
  try {
    const toml::table root = toml::parse(*text, file.string());
    reading.file_was_read = true;
    TomlReader(file, *text, reading).read(root);
  } catch (const toml::parse_error& error) {
    reading.faults.push_back(file.string() + ":" + std::to_string(error.source().begin.line) + ":" +
                             std::to_string(error.source().begin.column) +
                             ": not valid TOML: " + std::string(error.description()));
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
