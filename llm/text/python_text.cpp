#include "llm/text/python_text.h"

#include <algorithm>
#include <functional>
#include <optional>

#include <fmt/core.h>

#include "llm/text/utf8.h"

namespace llm::text {
namespace {

using nlohmann::ordered_json;

// str.isspace() of one character.
bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

// str.isprintable() of one character, unassigned ones left aside.
bool is_python_printable(char32_t c) {
  const bool is_format = c == 0xAD || (c >= 0x200B && c <= 0x200F) ||
                         (c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
                         c == 0xFEFF || c >= 0xE0000;
  const bool is_private = c >= 0xE000 && c <= 0xF8FF;
  const bool is_control = c < 0x20 || (c >= 0x7F && c < 0xA0);
  return c == 0x20 || !(is_control || is_format || is_private || is_python_space(c));
}

std::string escaped(char32_t c) {
  const auto value = static_cast<unsigned>(c);
  if (c < 0x100) {
    return fmt::format("\\x{:02x}", value);
  }
  return c < 0x10000 ? fmt::format("\\u{:04x}", value) : fmt::format("\\U{:08x}", value);
}

std::string quoted_as_python(std::string_view text) {
  const bool in_double =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = in_double ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = first_code_point(text.substr(at)).value_or(CodePoint{0xFFFD, 1});
    const char c = text[at];
    if (c == '\\' || c == quote) {
      out += '\\';
      out += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_python_printable(point.value)) {
      out.append(text.substr(at, point.bytes));
    } else {
      out += escaped(point.value);
    }
    at += point.bytes;
  }
  return out + quote;
}

// A value with ", " and ": " between its parts; `scalar` writes what holds no others.
std::string spaced(const ordered_json& value,
                   const std::function<std::string(const ordered_json&)>& scalar) {
  if (!value.is_structured()) {
    return scalar(value);
  }
  std::string out;
  for (const auto& [key, item] : value.items()) {
    out += out.empty() ? "" : ", ";
    out += value.is_object() ? scalar(ordered_json(key)) + ": " : "";
    out += spaced(item, scalar);
  }
  return value.is_object() ? "{" + out + "}" : "[" + out + "]";
}

std::string dumped(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string_view python_strip(std::string_view text) {
  while (!text.empty()) {
    const auto first = first_code_point(text);
    if (!first || !is_python_space(first->value)) {
      break;
    }
    text.remove_prefix(first->bytes);
  }
  while (!text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && is_continuation(text[begin])) {
      --begin;
    }
    const auto last = first_code_point(text.substr(begin));
    if (!last || !is_python_space(last->value)) {
      break;
    }
    text = text.substr(0, begin);
  }
  return text;
}

std::string python_repr(const ordered_json& value) {
  return spaced(value, [](const ordered_json& one) {
    if (one.is_string()) {
      return quoted_as_python(one.get_ref<const std::string&>());
    }
    if (one.is_boolean()) {
      return std::string(one.get<bool>() ? "True" : "False");
    }
    return one.is_null() ? std::string("None") : dumped(one);
  });
}

std::string python_json(const ordered_json& value) {
  return spaced(value, dumped);
}

}  // namespace llm::text
