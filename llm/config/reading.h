#pragma once
// What is gathered while a configuration is read: values, where each came from, and all faults.

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "llm/config/fields.h"

namespace llm::config {

/// A configuration in the making. Its fields point into its own `config`, so that it stays where it
/// is.
struct Reading {
  Reading() = default;
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  RunConfig config;
  std::vector<Field> fields = fields_of(config);
  std::map<std::string, std::string> places;  ///< key -> "run.toml:3" or "--section.key"
  std::set<std::string> faulty_keys;          ///< set, but to a value that was refused
  std::vector<std::string> faults;            ///< whole lines
  bool file_was_read = true;                  ///< false: what is missing might stand in the file

  /// The field "section.key", or nullptr.
  [[nodiscard]] const Field* find(std::string_view key) const;
  /// What to say after an unknown key, "section.key" or without a section: "; did you mean
  /// optim.lr?" if the name stands in another section, or one of its section is near; else what is
  /// known there. `mark` is put before the key.
  [[nodiscard]] std::string suggest_key(const std::string& key, const std::string& mark) const;
  /// The same after an unknown section.
  [[nodiscard]] static std::string suggest_section(const std::string& section);
};

}  // namespace llm::config
