#pragma once
// Values of fields as text, and text as values.

#include <string>
#include <string_view>

#include "llm/config/fields.h"

namespace llm::config {

/// The field's value as TOML: `"full_shard"`, `[0.9, 0.999]`, `true`.
[[nodiscard]] std::string value_text(const Field& field);

/// Sets the field from a flag's value ("0.9,0.95" for two numbers). False, and no change, if it is
/// of the wrong type or out of range.
[[nodiscard]] bool set_from_text(const Field& field, std::string_view text);

/// Each sets the field if it may hold such a value within its range; false, and no change,
/// otherwise.
[[nodiscard]] bool set_integer(const Field& field, std::int64_t value);
[[nodiscard]] bool set_number(const Field& field, double value);
[[nodiscard]] bool set_pair(const Field& field, std::array<double, 2> values);
[[nodiscard]] bool set_bool(const Field& field, bool value);
[[nodiscard]] bool set_string(const Field& field, const std::string& value);

}  // namespace llm::config
