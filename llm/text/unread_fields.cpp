#include "llm/text/unread_fields.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "llm/text/printable.h"
#include "llm/text/utf8.h"

namespace llm::text {

namespace {

constexpr std::size_t kMostFieldsCounted = 256;
constexpr std::size_t kMostFieldsTold = 12;
constexpr std::size_t kMostNameBytes = 100;

}  // namespace

void UnreadFields::add(Field field) {
  field.name.resize(start_of(field.name, kMostNameBytes).size());
  const auto found = places_.find(field.name);
  if (found != places_.end()) {
    fields_[found->second].records += field.records;
  } else if (fields_.size() < kMostFieldsCounted) {
    places_.emplace(field.name, fields_.size());
    fields_.push_back(std::move(field));
  }
}

void UnreadFields::add(const UnreadFields& later) {
  for (const Field& field : later.fields_) {
    add(field);
  }
}

void UnreadFields::place_in(const std::string& file) {
  for (Field& field : fields_) {
    field.first_record += " of " + file;
  }
}

std::string UnreadFields::sentence() const {
  std::string told;
  for (std::size_t i = 0; i < std::min(fields_.size(), kMostFieldsTold); ++i) {
    const Field& field = fields_[i];
    told += fmt::format("{}{} ({})", i == 0 ? "" : ", ", in_quotes(field.name),
                        field.records == 1 ? "1 record, " + field.first_record
                                           : fmt::format("{} records, first {}", field.records,
                                                         field.first_record));
  }
  if (fields_.empty()) {
    return "";
  }
  return "these fields are not read: " + told +
         (fields_.size() > kMostFieldsTold
              ? fmt::format(" and {} more", fields_.size() - kMostFieldsTold)
              : "");
}

}  // namespace llm::text
