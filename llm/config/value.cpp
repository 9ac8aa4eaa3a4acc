#include "llm/config/value.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "llm/config/toml_file.h"

namespace llm::config {
namespace {

template <class Number>
std::optional<Number> parse(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, number);
  return !text.empty() && fault == std::errc{} && stop == end ? std::optional(number)
                                                              : std::nullopt;
}

/// The shortest TOML float that reads back to the same number. A float has a point or an exponent.
std::string float_text(double value) {
  std::array<char, 32> buffer{};
  char* end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  const std::string text(buffer.data(), end);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

/// Turns a flag's text into the value of a slot's own type.
struct TextSetter {
  const Field& field;
  std::string_view text;

  bool operator()(const std::int64_t*) const {
    const auto value = parse<std::int64_t>(text);
    return value && set_integer(field, *value);
  }
  bool operator()(const double*) const {
    const auto value = parse<double>(text);
    return value && set_number(field, *value);
  }
  bool operator()(const bool*) const {
    return (text == "true" || text == "false") && set_bool(field, text == "true");
  }
  bool operator()(const std::array<double, 2>*) const {
    const std::size_t comma = text.find(',');
    if (comma == std::string_view::npos) {
      return false;
    }
    const auto first = parse<double>(text.substr(0, comma));
    const auto second = parse<double>(text.substr(comma + 1));
    return first && second && set_pair(field, {*first, *second});
  }
  bool operator()(const std::string*) const { return set_string(field, std::string(text)); }
  bool operator()(const Choice&) const { return set_string(field, std::string(text)); }
};

struct ValueText {
  const Field& field;

  std::string operator()(const std::int64_t* value) const { return std::to_string(*value); }
  std::string operator()(const double* value) const { return float_text(*value); }
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const std::array<double, 2>* value) const {
    return "[" + float_text((*value)[0]) + ", " + float_text((*value)[1]) + "]";
  }
  std::string operator()(const std::string* value) const { return quote(*value); }
  std::string operator()(const Choice& value) const { return quote(field.choices[value.get()]); }
};

struct Expectation {
  const Field& field;

  std::string operator()(const std::int64_t*) const { return "an integer" + field.range.text(); }
  std::string operator()(const double*) const { return "a number" + field.range.text(); }
  std::string operator()(const bool*) const { return "true or false"; }
  std::string operator()(const std::string*) const { return "a string"; }
  std::string operator()(const std::array<double, 2>*) const {
    return "two numbers, each" + field.range.text();
  }
  std::string operator()(const Choice&) const {
    std::string text = field.choices.size() > 1 ? "one of " : "";
    for (std::size_t i = 0; i < field.choices.size(); ++i) {
      text += (i > 0 ? ", " : "") + quote(field.choices[i]);
    }
    return text;
  }
};

}  // namespace

std::string value_text(const Field& field) {
  return std::visit(ValueText{field}, field.slot);
}

std::string Field::expectation() const {
  return std::visit(Expectation{*this}, slot);
}

bool set_from_text(const Field& field, std::string_view text) {
  return std::visit(TextSetter{field, text}, field.slot);
}

bool set_integer(const Field& field, std::int64_t value) {
  if (auto* const* slot = std::get_if<std::int64_t*>(&field.slot)) {
    const bool fits = field.range.holds(static_cast<double>(value));
    **slot = fits ? value : **slot;
    return fits;
  }
  return set_number(field, static_cast<double>(value));
}

bool set_number(const Field& field, double value) {
  auto* const* slot = std::get_if<double*>(&field.slot);
  const bool fits = slot != nullptr && field.range.holds(value);
  if (fits) {
    **slot = value;
  }
  return fits;
}

bool set_pair(const Field& field, std::array<double, 2> values) {
  auto* const* slot = std::get_if<std::array<double, 2>*>(&field.slot);
  const bool fits = slot != nullptr && field.range.holds(values[0]) && field.range.holds(values[1]);
  if (fits) {
    **slot = values;
  }
  return fits;
}

bool set_bool(const Field& field, bool value) {
  auto* const* slot = std::get_if<bool*>(&field.slot);
  if (slot != nullptr) {
    **slot = value;
  }
  return slot != nullptr;
}

bool set_string(const Field& field, const std::string& value) {
  if (auto* const* slot = std::get_if<std::string*>(&field.slot)) {
    **slot = value;
    return true;
  }
  const auto* slot = std::get_if<Choice>(&field.slot);
  const auto found = std::find(field.choices.begin(), field.choices.end(), value);
  if (slot == nullptr || found == field.choices.end()) {
    return false;
  }
  slot->set(static_cast<std::size_t>(found - field.choices.begin()));
  return true;
}

}  // namespace llm::config
