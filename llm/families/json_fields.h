#pragma once
// Checked access to the fields of an untrusted JSON object.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

namespace llm::families {

/// How a user names fields that are to be ignored, for messages.
enum class IgnoreBy {
  Key,   ///< with model.ignore_fields of a configuration
  Flag,  ///< with --ignore-fields
};

/// The fields of one object. Null counts as missing. Faults are Error(BadData) with file and field.
class JsonFields {
 public:
  static constexpr int64_t kMostUnits =
      2'147'483'647;  ///< widths and vocabularies; products fit in 64 bits
  static constexpr int64_t kMostLayers = 4'096;

  /// `place`: the file, for messages. `prefix`: path of the object inside it, "rope_scaling." for
  /// instance.
  JsonFields(const nlohmann::ordered_json& object, std::string place, std::string prefix = "")
      : object_(object), place_(std::move(place)), prefix_(std::move(prefix)) {}

  /// The value, or null if the field is missing. A field that was looked for counts as known.
  [[nodiscard]] const nlohmann::ordered_json* find(const char* name) const;
  /// Of several names that mean the same the one that is there, the first if none is. Fails where
  /// two of them contradict each other.
  [[nodiscard]] const char* spelling(std::initializer_list<const char*> names) const;
  /// Whole numbers in [1, `most`].
  [[nodiscard]] int64_t count(const char* name, int64_t most) const;
  [[nodiscard]] int64_t count(const char* name, int64_t most, int64_t fallback) const;
  /// Finite numbers above `above`.
  [[nodiscard]] double number(const char* name, double above) const;
  [[nodiscard]] double number(const char* name, double above, double fallback) const;
  [[nodiscard]] bool flag(const char* name, bool fallback) const;
  [[nodiscard]] std::optional<std::string> text(const char* name) const;

  /// Probabilities of dropout, in [0, 1): nothing is dropped here, so those above 0 are noted.
  void note_dropout(std::initializer_list<const char*> names) const;
  /// "\"attn_pdrop\" 0.1, …" of those noted; empty if there are none.
  [[nodiscard]] const std::string& dropout() const { return dropout_; }

  /// Refuses every field that was never looked for, unless it holds null, false or nothing at all
  /// ("", [], {}), or is one of `harmless`: it might change what the model computes.
  void refuse_unknown(std::span<const char* const> harmless, IgnoreBy ignore_by) const;

  /// An Error(BadData) about a field: "<file>: "<field>" <what>".
  [[noreturn]] void fail(const char* name, const std::string& what) const;
  [[nodiscard]] const nlohmann::ordered_json& object() const { return object_; }
  [[nodiscard]] const std::string& place() const { return place_; }

 private:
  [[nodiscard]] const nlohmann::ordered_json& require(const char* name) const;

  const nlohmann::ordered_json& object_;
  std::string place_;
  std::string prefix_;
  mutable std::set<std::string> known_;
  mutable std::string dropout_;
};

}  // namespace llm::families
