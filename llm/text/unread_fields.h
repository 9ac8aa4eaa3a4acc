#pragma once
// Fields of records that nothing reads, for people who expect otherwise.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace llm::text {

/// Such fields by name, in the order in which they were met. Memory: at most 256 names of 100
/// bytes.
class UnreadFields {
 public:
  struct Field {
    std::string name;          ///< a column, or a message's field: "messages.contnet"
    std::int64_t records = 0;  ///< that have it
    std::string first_record;  ///< where the first of them stands: "line 3"
    bool operator==(const Field&) const = default;
  };

  /// Counts one record that has the field.
  void add(const std::string& name, const std::string& record) { add({name, 1, record}); }
  /// Counts the records of a field; they follow those that were counted before.
  void add(Field field);
  /// Counts all fields of records that follow.
  void add(const UnreadFields& later);
  /// Their places are those of a file beside others: "line 3" becomes "line 3 of a.jsonl".
  void place_in(const std::string& file);

  [[nodiscard]] const std::vector<Field>& all() const { return fields_; }
  /// One sentence for people, without a line end; empty where there are none.
  [[nodiscard]] std::string sentence() const;

 private:
  std::vector<Field> fields_;
  std::map<std::string, std::size_t> places_;  // in fields_, by name
};

}  // namespace llm::text
