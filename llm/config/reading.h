#pragma once
// State of reading a configuration: values, where each came from, and all errors.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "llm/config/fields.h"

namespace llm::config {

/// A value where it was given.
struct Given {
  std::string key;    ///< as written
  std::string shown;  ///< key and value, for messages: "optim.lr = 0", "--optim.lr 0"
  std::string place;  ///< "run.toml:3", or the flag
  std::string mark;   ///< what is put before keys: "--" for flags
  Raw raw;

  /// The beginning of a message: "run.toml:3: optim.lr = 0", "--optim.lr 0".
  [[nodiscard]] std::string where() const { return mark.empty() ? place + ": " + shown : shown; }
};

/// A configuration in the making.
struct Reading {
  RunConfig config;
  std::map<std::string, std::string> places;  ///< key -> "run.toml:3" or "--section.key"
  std::set<std::string> faulty_keys;          ///< set, but to a value that was refused
  std::vector<std::string> faults;            ///< whole lines
  std::vector<std::string> notes;             ///< whole lines, of what has another name now
  bool file_was_read = true;                  ///< false: what is missing might stand in the file

  /// Sets `key`, which is `field`'s. Empty, or the fault as a whole line.
  [[nodiscard]] std::string set(const std::string& key, const Field& field, const Given& given);
  /// Sets what `given.key`, an old name, has become, and notes that. Empty, or the fault.
  [[nodiscard]] std::string set_renamed(const std::vector<Renamed>& fields, const Given& given);
  /// Sets the only item of a list by its shorthand: data.train = "f.json".
  [[nodiscard]] std::string set_shorthand(const std::string& key, const TableList& list,
                                          const Given& given);

  /// The keys that were given at this place, or earlier in the same source.
  std::set<std::string> given_keys;
};

/// What to say after an unknown key, "section.key" or without a section: "; here it is optim.lr" if
/// another tool has a key of this name (foreign_keys.h); "; did you mean optim.lr?"
/// if the name stands in another section, or one of its section is near; else what is known there.
/// `mark` is put before the key.
[[nodiscard]] std::string suggest_key(const std::string& key, const std::string& mark);
/// The same after an unknown section.
[[nodiscard]] std::string suggest_section(const std::string& section);

/// "not there yet: adapters such as LoRA".
[[nodiscard]] std::string not_there_yet(const Field& field);

}  // namespace llm::config
