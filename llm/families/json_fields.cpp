#include "llm/families/json_fields.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "sherd/error.h"

namespace llm::families {

using Json = nlohmann::ordered_json;

namespace {

std::string how_to_ignore(const std::string& field, IgnoreBy by) {
  return by == IgnoreBy::Key ? fmt::format("model.ignore_fields = [\"{}\"]", field)
                             : "--ignore-fields " + field;
}

}  // namespace

void JsonFields::fail(const char* name, const std::string& what) const {
  throw sherd::Error(sherd::ExitCode::BadData,
                     fmt::format("{}: \"{}{}\" {}", place_, prefix_, name, what));
}

const Json* JsonFields::find(const char* name) const {
  known_.insert(name);
  const auto field = object_.find(name);
  return field == object_.end() || field->is_null() ? nullptr : &*field;
}

void JsonFields::note_dropout(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    const Json* value = find(name);
    if (value == nullptr) {
      continue;
    }
    const double share = value->is_number() ? value->get<double>() : -1;
    if (!(share >= 0 && share < 1)) {
      fail(name, "must be a number from 0 to below 1, found " + value->dump());
    }
    if (share > 0) {
      dropout_ += fmt::format("{}\"{}\" {}", dropout_.empty() ? "" : ", ", name, share);
    }
  }
}

void JsonFields::refuse_unknown(std::span<const char* const> harmless, IgnoreBy ignore_by) const {
  for (const auto& [name, value] : object_.items()) {
    const bool says_nothing = value.is_null() || value == false || value == "" ||
                              (value.is_structured() && value.empty());
    const bool is_harmless = std::any_of(harmless.begin(), harmless.end(),
                                         [&name = name](const char* one) { return name == one; });
    if (!says_nothing && !is_harmless && !known_.contains(name)) {
      fail(name.c_str(), fmt::format("{} is unknown, and may change what the model computes. If it "
                                     "does not, ignore it with {}, or remove it from the file",
                                     value.dump(), how_to_ignore(name, ignore_by)));
    }
  }
}

const char* JsonFields::spelling(std::initializer_list<const char*> names) const {
  const char* given = nullptr;
  for (const char* name : names) {
    if (find(name) == nullptr) {
      continue;
    }
    if (given != nullptr && *find(name) != *find(given)) {
      fail(name, find(name)->dump() + " contradicts \"" + given + "\" " + find(given)->dump());
    }
    given = given == nullptr ? name : given;
  }
  return given == nullptr ? *names.begin() : given;
}

const Json& JsonFields::require(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) {
    fail(name, "is missing");
  }
  return *value;
}

int64_t JsonFields::count(const char* name, int64_t most) const {
  const Json& value = require(name);
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() >= 1 &&
                    value.get<uint64_t>() <= static_cast<uint64_t>(most);
  if (!fits) {
    fail(name, fmt::format("must be a whole number from 1 to {}, found {}", most, value.dump()));
  }
  return value.get<int64_t>();
}

int64_t JsonFields::count(const char* name, int64_t most, int64_t fallback) const {
  return find(name) == nullptr ? fallback : count(name, most);
}

double JsonFields::number(const char* name, double above) const {
  const Json& value = require(name);
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= above) {
    fail(name, "must be a number above " + Json(above).dump() + ", found " + value.dump());
  }
  return value.get<double>();
}

double JsonFields::number(const char* name, double above, double fallback) const {
  return find(name) == nullptr ? fallback : number(name, above);
}

bool JsonFields::flag(const char* name, bool fallback) const {
  const Json* value = find(name);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    fail(name, "must be true or false, found " + value->dump());
  }
  return value->get<bool>();
}

std::optional<std::string> JsonFields::text(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    fail(name, "must be a string, found " + value->dump());
  }
  return value->get<std::string>();
}

}  // namespace llm::families
