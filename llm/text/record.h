#pragma once
// One record: a JSON object of which some fields are wanted.

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace llm::text {

/// Which fields of a record are kept.
struct WantedFields {
  std::set<std::string> names;
  std::set<std::string> lists;  ///< those that may be lists of messages
};

/// The wanted fields of a record, or why it is bad.
struct Record {
  /// An object. Of messages it holds the fields that a conversation has (chat_record.h), and those
  /// that tells_what_is_learned() knows.
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
  std::vector<std::string> names;  ///< of all fields, the first 256
  /// Names of other fields of messages, by the list; each once, the first 256. One that is null
  /// counts as absent, since tables give each message all fields.
  std::vector<std::pair<std::string, std::string>> unread;
  /// Names that occur twice within a wanted field, by that field; a wanted field itself too.
  std::vector<std::pair<std::string, std::string>> twice;
  std::string fault;           ///< empty: it is good so far
  std::size_t fault_byte = 0;  ///< from the record's begin

  /// The names of its fields, for a message.
  [[nodiscard]] std::string columns() const;
};

/// Names for a message: quoted, the first ones.
[[nodiscard]] std::string names_text(const std::vector<std::string>& names);

/// The fields of a message or of a record that tell other trainers what is learned: "train",
/// "loss", "mask" and the like. Here a message's `weight` does.
[[nodiscard]] std::span<const std::string_view> fields_of_what_is_learned();
[[nodiscard]] bool tells_what_is_learned(std::string_view field);

/// Reads `bytes`, one JSON object as RFC 8259 has it, nested at most 64 deep. Fields that are not
/// wanted are passed over and kept nowhere. Integers of wanted fields have 64 bits at most, and
/// their objects 1024 fields. Never throws for what a record holds.
[[nodiscard]] Record read_record(std::string_view bytes, const WantedFields& wanted);

}  // namespace llm::text
