#pragma once
// What the tables of keys in schema.cpp and schema_data.cpp are written with.

#include <string>
#include <utility>
#include <vector>

#include "llm/config/fields.h"

namespace llm::config {

constexpr Range at_least(double least) {
  return {.least = least};
}
constexpr Range between(double least, double most) {
  return {.least = least, .most = most};
}
constexpr Range above(double least) {
  return {.least = least, .above_least = true};
}

inline Field planned_field(std::string name, std::string doc) {
  return {.name = std::move(name), .slot = NotYet{}, .doc = std::move(doc)};
}

/// Of a field: why it has no effect, where that is so.
inline std::string no_effect(bool is_so, const char* because) {
  return is_so ? because : "";
}

template <class Item, class Fields>
TableList list_of(std::vector<Item>& items, Fields fields, std::string shorthand = "") {
  return {.size = [&items] { return items.size(); },
          .resize = [&items](std::size_t size) { items.resize(size); },
          .item = [&items, fields](std::size_t i) { return fields(items[i], i); },
          .shorthand = std::move(shorthand)};
}

/// The keys of [adapter].
[[nodiscard]] Table adapter_fields(AdapterSection& adapter);
/// The keys of [data].
[[nodiscard]] Table data_fields(DataSection& data);

}  // namespace llm::config
