#pragma once
// One record: a JSON object of which two strings are wanted.

#include <cstddef>
#include <string>
#include <string_view>

namespace llm::text {

/// Two strings of a record, or why it is bad.
struct Record {
  std::string prompt;
  std::string completion;
  std::string fault;           ///< empty: it is good
  std::size_t fault_byte = 0;  ///< from the record's begin
};

/// Reads `bytes`, one JSON object. Other fields are ignored; in them, NaN, Infinity and numbers
/// beyond the range of double are accepted too, as writers other than JSON's grammar allow. Never
/// throws for what a record holds.
[[nodiscard]] Record read_record(std::string_view bytes, const std::string& prompt_column,
                                 const std::string& completion_column);

}  // namespace llm::text
