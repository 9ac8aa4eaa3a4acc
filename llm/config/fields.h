#pragma once
// The tree of all keys, from which parsing, flags, printing, comparing and the reference page are
// made. schema.cpp says of each key all there is to say, once.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "llm/config/run_config.h"
#include "llm/config/value.h"

namespace llm::config {

struct Field;

/// A table of TOML: a section, or an item of a list.
struct Table {
  std::vector<Field> fields;
};

/// A list of tables: [[data.train]].
struct TableList {
  std::function<std::size_t()> size;
  std::function<void(std::size_t)> resize;
  std::function<Table(std::size_t)> item;  ///< valid until the next resize
  std::string shorthand = {};  ///< the key that a string alone gives: data.train = "f.json"
};

/// A key whose feature does not exist: it is refused as not there yet, with its doc.
struct NotYet {};

/// A key under which a value was given in earlier versions, read until 1.0.
struct OldName {
  std::string key;  ///< whole: "optim.schedule"
  /// What an old value is in the new words, as a flag's text; without it the same.
  std::function<std::string(const std::string& old_value)> value = {};
};

/// A value that was written in another way in earlier versions, read until 1.0.
struct OldValue {
  std::string was;
  std::string is;
};

/// A key, and all that is said about it.
struct Field {
  std::string name;
  std::variant<Value, Table, TableList, NotYet> slot;
  std::string doc = {};                 ///< one line
  std::string unit = {};                ///< of a number; empty for none
  bool required = false;                ///< a string that may not be empty, a list that may not be
  std::string default_words = {};       ///< of a default that the value itself does not show
  OnResume on_resume = OnResume::Free;  ///< whether a resumed run may have another value
  std::string idle = {};  ///< why it has no effect beside the other values; empty: it has
  bool of_host = false;   ///< may differ from host to host: a place of files, threads
  std::vector<OldName> old_names = {};
  std::optional<OldValue> old_value = {};
  std::string before = {};  ///< what programs did that lack the key, where not the default

  [[nodiscard]] const Value* value() const { return std::get_if<Value>(&slot); }
  [[nodiscard]] const Table* table() const { return std::get_if<Table>(&slot); }
  [[nodiscard]] const TableList* list() const { return std::get_if<TableList>(&slot); }
  [[nodiscard]] bool is_not_yet() const { return std::holds_alternative<NotYet>(slot); }
};

/// All keys, in the order of the file. Points into `config`, which must outlive it.
[[nodiscard]] Table schema(RunConfig& config);

/// A field and its whole key: "optim.lr", "data.train[0].path".
struct Leaf {
  std::string key;
  Field field;

  [[nodiscard]] std::string text() const { return field.value()->text(); }
};

/// Every value that `config` holds, with those of each item of a list. Valid until a list changes
/// its length.
[[nodiscard]] std::vector<Leaf> leaves(RunConfig& config);

/// What a key names.
struct Found {
  std::string key;             ///< with an index after each list
  std::optional<Field> field;  ///< nothing: there is no such key
};

/// The field of a key such as "optim.lr", "data.train" or "data.train[1].path". A list grows by the
/// item after its last one; indices beyond find nothing. A key below one that is not there yet
/// finds that one.
[[nodiscard]] Found find(RunConfig& config, std::string_view key);

/// A field that had another name.
struct Renamed {
  Leaf now;  ///< its key and words; its value is that of no configuration
  OldName old;
};

[[nodiscard]] std::vector<Renamed> all_renamed();
/// What the old name `key` has become; empty if it is none.
[[nodiscard]] std::vector<Renamed> renamed(std::string_view key);

/// A configuration with one item in each list, in which all keys can be seen.
[[nodiscard]] RunConfig with_items();

}  // namespace llm::config
